"""`edgekit check` and `edgekit.models` against a hub: what they fetch, refuse, download and leave on disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.header_files import ARRAY, F32, FLOAT32, STRING, UINT32, entry, gguf, key
from tests.hub import nginx_hub
from tests.hub.hub_files import gguf_header
from tests.hub.nginx_hub import TOKEN, Hub
from tests.hub.raw_server import RawServer, Request, Script, Send, hub_script, response
from tests.patience import PATIENCE_S, wait_until

from edgekit.cli import main
from edgekit.errors import (
    RangeNotSupportedError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
)
from edgekit.models import can_load, inspect_model_remote, model_preflight
from edgekit.sources.download import download_model

LAYERS, HIDDEN, FEED_FORWARD, KV_WIDTH, CONTEXT, VOCABULARY = 2, 64, 128, 32, 2048, 256
FITS = " of 7.0 GiB at 2K, about "  # the native context of these models
FIRST_RANGE = "bytes=0-524287"


def full_model_header(*, architecture: str = "llama", vocabulary: int = 0, **more: Any) -> bytes:
    """The header of a model that llama.cpp would load; the headers of nginx_hub have one tensor."""
    if architecture != "llama" or more:
        return gguf_header(architecture=architecture, vocabulary=vocabulary, **more)
    tokens = [f"token{number:07d}" for number in range(vocabulary or VOCABULARY)]
    numbers = {
        "block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": FEED_FORWARD,
        "attention.head_count": 4, "attention.head_count_kv": 2, "context_length": CONTEXT,
    }  # fmt: skip
    keys = [
        key("general.architecture", STRING, "llama"),
        key("general.file_type", UINT32, 0),  # all F32
        *(key(f"llama.{name}", UINT32, value) for name, value in numbers.items()),
        key("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        key("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
    ]
    tensors, offset = [], 0
    for name, shape in _shapes(len(tokens)):
        tensors.append(entry(name, shape, F32, offset))
        offset += 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    return gguf(keys, tensors)


def _shapes(vocabulary: int) -> Iterator[tuple[str, list[int]]]:
    yield "token_embd.weight", [HIDDEN, vocabulary]
    yield "output_norm.weight", [HIDDEN]
    for block in range(LAYERS):
        for name, shape in (
            ("attn_norm", [HIDDEN]), ("attn_q", [HIDDEN, HIDDEN]), ("attn_k", [HIDDEN, KV_WIDTH]),
            ("attn_v", [HIDDEN, KV_WIDTH]), ("attn_output", [HIDDEN, HIDDEN]), ("ffn_norm", [HIDDEN]),
            ("ffn_gate", [HIDDEN, FEED_FORWARD]), ("ffn_up", [HIDDEN, FEED_FORWARD]),
            ("ffn_down", [FEED_FORWARD, HIDDEN]),
        ):  # fmt: skip
            yield f"blk.{block}.{name}.weight", shape


@contextmanager
def running(root: Path) -> Iterator[tuple[Hub, subprocess.Popen[bytes]]]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed (Debian: apt install nginx-light)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nginx_hub, "gguf_header", full_model_header)
        hub, process = nginx_hub.start(root)
    yield hub, process
    process.terminate()
    process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running(tmp_path_factory.mktemp("nginx")) as (hub, _):
        yield hub


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["check", *words, "--ram", "8G"])
    out, err = capsys.readouterr()
    return code, out, err


def check_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(check(capsys, *words, "--json")[1])
    return answer


def ranges(hub: Hub) -> list[str]:
    """The Range of each request to the CDN: 'bytes=first-last', or '-' for a whole file."""
    return [line.split()[3] for line in hub.log("cdn")]


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# --- header only


def test_check_fetches_only_the_header(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, "acme/large-GGUF", "--quiet", "--exact")
    assert (code, err) == (0, "")
    assert out.startswith("Runs on the CPU: ")
    assert FITS in out
    requests = [tuple(map(int, item.removeprefix("bytes=").split("-"))) for item in ranges(hub)]
    assert ranges(hub)[0] == FIRST_RANGE
    for (_, last), (first, _) in pairwise(requests):
        assert first == last + 1  # each range continues the previous one
    header = len(full_model_header(vocabulary=100_000))
    assert header <= requests[-1][1] + 1 <= header + 2**20  # the file has 64 MiB of weights
    assert [line.split()[:3] for line in hub.log("hub")] == [
        ["GET", "/api/models/acme/large-GGUF/tree/main/page.json", "200"],
        ["GET", "/acme/large-GGUF/resolve/main/large-Q4_K_M.gguf", "302"],
    ]


def test_second_check_fetches_nothing(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    first = check(capsys, "acme/large-GGUF", "--quiet")
    hub.clear_logs()
    assert check(capsys, "acme/large-GGUF", "--quiet") == first
    assert hub.log("cdn") == []


def test_can_load_takes_one_range(hub: Hub) -> None:
    assert can_load("acme/large-GGUF", ram="8G")
    assert ranges(hub) == [FIRST_RANGE]


def test_command_starts_the_engine_with_the_hub_id(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = check_json(capsys, "acme/large-GGUF")
    assert answer["command"].startswith("llama-server -hf acme/large-GGUF:Q4_K_M --no-mmproj -c")


@pytest.mark.parametrize("verb", ["check", "estimate", "plan"])
def test_projector_that_hf_loads_is_counted(
    hub: Hub, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    flags: tuple[str, ...] = ("acme/tiny-GGUF:Q8_0", "-c", "1024", "--json")
    flags += () if verb == "estimate" else ("--ram", "16G")

    def answer(*more: str) -> tuple[dict[str, Any], str]:
        assert main([verb, *flags, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        return found, str(found.get("command") or found["commands"][0]["text"])

    found, command = answer()
    text_only, its_command = answer("--no-mmproj")
    assert command.startswith("llama-server -hf acme/tiny-GGUF:Q8_0 -c 1024")
    assert its_command.startswith("llama-server -hf acme/tiny-GGUF:Q8_0 --no-mmproj -c 1024")
    if verb == "estimate":
        lines = [line for line in found["lines"] if "projector" in str(line.get("because"))]
        assert [line["bytes"] for line in lines] == [64 * 4 * 4]  # one F32 tensor of 64 x 4
    if verb != "plan":
        said = "mmproj-tiny-F16.gguf and one image are counted, because -hf loads it"
        assert any(said in note for note in found["notes"])
        assert any("is not counted" in note for note in text_only["notes"])


def test_several_models_are_answered_in_order(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["acme/llama", "acme/gated-GGUF", "acme/tiny-GGUF:Q8_0", "acme/none", "acme/tiny-GGUF"]
    code, out, err = check(capsys, *names, "--json")
    answer = json.loads(out)
    assert (code, err) == (4, "")
    assert [model["reference"] for model in answer["models"]] == names
    assert answer["summary"]["fits"] == 3
    assert [model["error"]["type"] for model in answer["models"] if "error" in model] == [
        "RemoteAccessError",
        "RemoteNotFoundError",
    ]


# --- gated models


def test_gated_model_says_how_to_log_in(
    hub: Hub, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = check(capsys, "acme/gated-GGUF", "--download-up-to", "1G")
    assert (code, out) == (4, "")
    assert "the model is gated" in err
    assert (
        "accept its terms on the model's page, then log in with `hf auth login`, or set HF_TOKEN"
        in err
    )
    assert (hub.log("cdn"), files_in(hub_cache)) == ([], [])
    with pytest.raises(RemoteAccessError):
        model_preflight("acme/gated-GGUF", ram="8G")
    with pytest.raises(RemoteAccessError):
        inspect_model_remote("acme/gated-GGUF")


def test_gated_model_with_a_token_is_checked(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert check(capsys, "acme/gated-GGUF", "--quiet")[0] == 0
    assert all(
        line.endswith("auth=[-]") for line in hub.log("cdn")
    )  # the token goes to the hub only


def test_gated_model_in_the_hub_cache_is_read_from_there(
    hub: Hub, hub_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as with_token:
        with_token.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
        with_token.setenv("HF_TOKEN", TOKEN)
        download_model("acme/gated-GGUF", RemoteInspectError("asked to"), confirm=lambda _: True)
    code, out, err = check(capsys, "acme/gated-GGUF", "--no-download")
    assert (code, err) == (0, "")
    answer = " ".join(out.split())
    assert (
        "could not read it from Hugging Face, so the files in the local cache were used" in answer
    )
    assert "the model is gated" in answer
    assert model_preflight("acme/gated-GGUF", ram="8G").can_load
    assert can_load("acme/gated-GGUF", ram="8G")
    assert inspect_model_remote("acme/gated-GGUF").num_layers > 0
    assert main(["inspect", "acme/gated-GGUF"]) == 0


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("acme/tiny-GGFU", "Did you mean: acme/tiny-GGUF?"),
        ("acme/none", "no such repository, or a private one"),
        ("acme/tiny-GGUF:Q5_K_M", "acme/tiny-GGUF has no Q5_K_M. Did you mean: Q4_K_M, Q8_0?"),
        ("acme/tiny-GGUF/tiny-Q6_K.gguf", "tiny-Q6_K.gguf"),
    ],
)  # fmt: skip
def test_missing_repositories_and_files_are_one_sentence(
    reference: str, sentence: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = check(capsys, reference)
    assert (code, out) == (4, "")
    assert len(err.splitlines()) == 1
    assert sentence in err


def test_missing_repository_is_not_downloaded(hub: Hub) -> None:
    with pytest.raises(RemoteNotFoundError):
        model_preflight("acme/none", ram="8G")


# --- a server without ranges


@pytest.mark.parametrize("words", [["--no-download"], ["--download-up-to", "100K"]])
def test_download_without_permission_is_refused(
    words: list[str], hub: Hub, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = check(capsys, "acme/whole-GGUF", *words)
    assert (code, out) == (4, "")
    assert len(err.splitlines()) == 1
    assert "only sends whole files (it ignores Range)" in err
    assert "--download-up-to SIZE" in err
    assert files_in(hub_cache) == []
    assert (
        check_json(capsys, "acme/whole-GGUF", *words)["error"]["type"] == "RangeNotSupportedError"
    )


def test_allowed_download_is_made_and_reported(
    hub: Hub,
    hub_cache: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    code, out, _ = check(capsys, "acme/whole-GGUF", "--download-up-to", "1G")
    assert code == 0
    assert FITS in out.splitlines()[0]
    size = f"{(len(full_model_header()) + 2**20) / 2**20:.2f} MiB"
    assert f"downloaded in full ({size})" in " ".join(out.split())
    assert caplog.text.count("the header alone was not enough") == 1
    assert f"downloading {size} to {hub_cache}" in caplog.text
    assert "whole-Q4_K_M.gguf" in files_in(hub_cache)
    assert not [name for name in files_in(hub_cache) if name.endswith(".incomplete")]


def test_downloaded_model_is_checked_offline(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, "acme/whole-GGUF", "--download-up-to", "1G")
    hub.clear_logs()
    code, out, err = check(capsys, "acme/whole-GGUF", "--offline", "--no-download")
    assert (code, err) == (0, "")
    assert FITS in out.splitlines()[0]
    assert (hub.log("hub"), hub.log("cdn")) == ([], [])


def test_downloaded_model_needs_no_second_permission(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(capsys, "acme/whole-GGUF", "--download-up-to", "1G")[0] == 0
    assert check(capsys, "acme/whole-GGUF", "--no-download", "--quiet")[0] == 0
    assert can_load("acme/whole-GGUF", ram="8G")
    assert inspect_model_remote("acme/whole-GGUF").num_layers == LAYERS


def test_python_api_downloads_only_with_allow_download(hub: Hub, hub_cache: Path) -> None:
    for function in (can_load, inspect_model_remote):
        with pytest.raises(RangeNotSupportedError):
            function("acme/whole-GGUF")
    with pytest.raises(RangeNotSupportedError, match="allow_download=True"):
        model_preflight("acme/whole-GGUF", ram="8G", allow_download=False)
    assert files_in(hub_cache) == []
    assert model_preflight("acme/whole-GGUF", ram="8G").max_context == CONTEXT
    assert "whole-Q4_K_M.gguf" in files_in(hub_cache)


@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")
@pytest.mark.parametrize(("reply", "code"), [(b"y\n", 0), (b"no\n", 4), (b"\n", 4)])
def test_check_asks_at_a_terminal_before_it_downloads(
    reply: bytes, code: int, hub: Hub, hub_cache: Path
) -> None:
    result, answer = on_a_terminal(reply, "acme/whole-GGUF", "--download-up-to", "100K")
    assert result == code
    size = f"{(len(full_model_header()) + 2**20) / 2**20:.2f} MiB"
    assert f"Download {size} to {hub_cache} and inspect it? [y/N]" in answer
    assert (FITS in answer) == (code == 0)
    assert bool(files_in(hub_cache)) == (code == 0)


def on_a_terminal(reply: bytes, *words: str) -> tuple[int, str]:
    import pty

    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "edgekit", "check", *words, "--ram", "8G"],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    answer = b""
    try:
        while piece := os.read(controller, 65536):
            answer += piece
            if b"[y/N] " in answer and reply:
                os.write(controller, reply)
                reply = b""
    except OSError:  # on Linux: the other side is closed
        pass
    os.close(controller)
    return process.wait(PATIENCE_S), answer.decode()


# --- the hub is off or down


def test_cached_listing_answers_offline(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(capsys, "acme/tiny-GGUF", "--quiet")[0] == 0
    hub.clear_logs()
    code, out, err = check(capsys, "acme/tiny-GGUF", "--offline")
    assert (code, err) == (0, "")
    assert "offline: using the answer cached on" in " ".join(out.split())
    assert (hub.log("hub"), hub.log("cdn")) == ([], [])


def test_offline_without_a_cache_is_an_error(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, "acme/tiny-GGUF", "--offline")
    assert (code, out) == (4, "")
    assert "acme/tiny-GGUF is not in the Hugging Face cache" in err
    assert "--offline" in err


def test_unreachable_hub_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "nginx") as (hub, process):
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        before = check_json(capsys, "acme/tiny-GGUF")
        process.terminate()
        process.wait(PATIENCE_S)
        after = check_json(capsys, "acme/tiny-GGUF")
        assert after["required_bytes"] == before["required_bytes"]
        assert "could not reach Hugging Face" in " ".join(after["notes"])
        code, out, err = check(capsys, "acme/llama")
        assert (code, out) == (4, "")
        assert f"cannot reach {hub.endpoint[7:]}" in err
        assert "models already on this machine still work" in err
        code, out, _ = check(capsys, "acme/llama", "acme/tiny-GGUF")
        assert code == 4
        assert re.search(r"^not read +acme/llama ", out, re.MULTILINE)
        assert re.search(r"^fits +acme/tiny-GGUF:Q4_K_M ", out, re.MULTILINE)


# --- Ctrl-C


def stalled(request: Request, _: Send) -> None:
    """Takes the request and never answers."""
    request.hang()


def stalled_download(request: Request, send: Send) -> None:
    """Ignores ranges; sends half of the file, then nothing."""
    content = full_model_header() + bytes(2**20)
    if "range" in request.headers and request.first_byte == 0 and request.number < 4:
        send(response("200 OK", {}, content))
        return
    send(response("200 OK", {"Content-Length": str(len(content))}) + content[: len(content) // 2])
    request.hang()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize(
    "names",
    [
        ["acme/raw"],
        ["acme/raw", "acme/other"],
    ],
)
def test_ctrl_c_while_the_hub_does_not_answer(
    names: list[str], raw_server: Callable[[Script], RawServer], hub_cache: Path
) -> None:
    server = raw_server(stalled)
    process = start_child(server, *names, "--timeout", str(2 * PATIENCE_S))
    wait_until(lambda: len(server.requests) >= len(names))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (130, "", "edgekit: interrupted\n")
    assert files_in(hub_cache) == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_ctrl_c_in_a_download_leaves_no_partial_file(
    raw_server: Callable[[Script], RawServer], hub_cache: Path
) -> None:
    content = full_model_header() + bytes(2**20)
    server = raw_server(hub_script({"raw-Q4_K_M.gguf": content}, stalled_download))
    process = start_child(server, "acme/raw", "--download-up-to", "1G")
    wait_until(lambda: server.sent_bytes > len(content) and any(hub_cache.rglob("*.incomplete")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("edgekit: interrupted\n")
    assert "Traceback" not in err
    assert not [
        name for name in files_in(hub_cache) if not name.endswith((".lock", "CACHEDIR.TAG"))
    ]


def start_child(server: RawServer, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "edgekit", "check", *words, "--ram", "8G"],
        env={**os.environ, "HF_ENDPOINT": server.address},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
