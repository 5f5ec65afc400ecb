"""`edgekit run` of a model on a hub: the verdict from its header, then the download, then the run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hub.hub_files import safetensors_header
from tests.hub.raw_server import RawServer, Request, Script, Send, hub_script, response
from tests.patience import PATIENCE_S
from tests.projectors import png, write_projector
from tests.runnable import write_chatting

from edgekit.cli import main

FILE = "small-Q8_0.gguf"
MIXES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")
NAMED = ("run", "qwen3-0.6b:Q8_0", "--engine", "stream", "-p", "Hello", "-n", "2", "--raw")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_chatting(tmp_path_factory.mktemp("hub") / FILE, kind="Q8_0").read_bytes()


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def server(
    raw_server: Callable[[Script], RawServer], content: bytes, monkeypatch: pytest.MonkeyPatch
) -> RawServer:
    """A hub that serves ranges."""

    def send_range(request: Request, send: Send) -> None:
        first, last, status = 0, len(content) - 1, "200 OK"
        headers = {}
        if "range" in request.headers:
            start, _, end = request.headers["range"].removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end or last), last)
            status = "206 Partial Content"
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        body = content[first : last + 1]
        send(response(status, {**headers, "Content-Length": str(len(body))}) + body)

    result = raw_server(hub_script({f"small-{mix}.gguf": content for mix in MIXES}, send_range))
    monkeypatch.setenv("HF_ENDPOINT", result.address)
    return result


def downloads(server: RawServer) -> list[Request]:
    """Requests for a whole file; reading a header requests ranges with an end."""
    gets = [item for item in server.requests if re.match(r"GET /[^/]+/[^/]+/resolve/", item.line)]
    return [get for get in gets if get.headers.get("range", "bytes=0-").endswith("-")]


def test_run_downloads_after_the_verdict(
    server: RawServer, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", "acme/raw:Q8_0", "--engine", "stream", "-p", "Hello", "-n", "2", "--raw")
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out
    assert "as estimated" in err
    assert len(downloads(server)) == 1
    assert next(hub_cache.glob("models--*/snapshots/*/*.gguf")).name == FILE
    before = len(server.requests)
    assert main((*words, "--offline")) == 0  # cached now
    assert len(server.requests) == before


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("-c", "900000000"), 3, "Does not fit"),
        (
            ("--no-download",),
            4,
            "acme/raw:Q8_0 is not on this machine, and --no-download is set: leave it out, or run edgekit download acme/raw",
        ),
        (("--download-up-to", "10K"), 4, "was not allowed"),
    ],
)
def test_run_downloads_nothing_that_does_not_fit_or_is_not_allowed(
    server: RawServer, hub_cache: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        result = main(("run", "acme/raw:Q8_0", "--engine", "stream", "-p", "Hello", *words))
    assert (result, message in text.getvalue()) == (code, True)
    assert downloads(server) == []
    assert not list(hub_cache.glob("models--*/blobs/*"))


# --- images


@pytest.fixture
def vision_hub(
    raw_server: Callable[[Script], RawServer],
    content: bytes,
    hub_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> RawServer:
    """A hub whose repositories have a model and its image projector, and serve ranges."""
    projector = write_projector(tmp_path / "mmproj-F16.gguf", hidden=256).read_bytes()
    (tmp_path / "photo.png").write_bytes(png())
    files = {FILE: content, "mmproj-F16.gguf": projector}

    def send_range(request: Request, send: Send) -> None:
        body, status, headers = files[request.line.split()[1].rpartition("/")[2]], "200 OK", {}
        if "range" in request.headers:
            start, _, end = request.headers["range"].removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end or len(body)), len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            body, status = body[first : last + 1], "206 Partial Content"
        send(response(status, {**headers, "Content-Length": str(len(body))}) + body)

    result = raw_server(hub_script(files, send_range))
    monkeypatch.setenv("HF_ENDPOINT", result.address)
    return result


@pytest.mark.parametrize("name", ["acme/raw:Q8_0", "gemma-3-4b:Q8_0"])
def test_run_with_an_image_downloads_the_projector(
    vision_hub: RawServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pytest.importorskip("xllamacpp")
    words = ("run", name, "-p", "What is this?", "-n", "2", "-q", "--yes")
    assert main(words) == 0
    assert got(vision_hub) == [FILE]
    with_image = (*words, "--image", str(tmp_path / "photo.png"))
    assert main(with_image) == 0, capsys.readouterr().err
    assert got(vision_hub) == [FILE, "mmproj-F16.gguf"]  # the weights were not fetched again
    before = len(vision_hub.requests)
    assert main((*with_image, "--offline")) == 0
    assert len(vision_hub.requests) == before


def test_run_with_an_image_refuses_a_repository_without_a_projector(
    server: RawServer, hub_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "photo.png").write_bytes(png())
    words = ("run", "acme/raw:Q8_0", "-p", "a", "--image", str(tmp_path / "photo.png"))
    assert main(words) == 2
    assert "has no image projector" in capsys.readouterr().err
    assert downloads(server) == []


# --- names of the catalog


@pytest.mark.parametrize("engine", ["stream", "llama.cpp"])
def test_run_downloads_a_catalog_name_and_finds_it_the_next_time(
    server: RawServer, hub_cache: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    assert main((*NAMED, "--yes", "--engine", engine)) == 0
    out, err = capsys.readouterr()
    assert out
    assert "qwen3-0.6b at Q8_0, from Qwen/Qwen3-0.6B-GGUF" in err
    assert [download.line.split()[1].rpartition("/")[2] for download in downloads(server)] == [FILE]
    assert len(list(hub_cache.glob("models--Qwen--Qwen3-0.6B-GGUF/snapshots/*/*.gguf"))) == 1
    before = len(server.requests)
    assert main((*NAMED, "--offline", "--engine", engine)) == 0  # cached now: needs no consent
    assert len(server.requests) == before


def test_run_chooses_the_quantisation_of_a_catalog_name(
    server: RawServer, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("run", "qwen3-0.6b", *NAMED[2:], "--yes", "--json")) == 0
    (file,) = hub_cache.glob("models--Qwen--Qwen3-0.6B-GGUF/snapshots/*/*.gguf")
    assert file.name in {f"small-{mix}.gguf" for mix in MIXES}
    assert len(downloads(server)) == 1


@pytest.mark.parametrize("words", [NAMED, ("serve", "qwen3-0.6b:Q8_0", "--port", "0")])
def test_catalog_name_is_not_downloaded_without_consent(
    server: RawServer, hub_cache: Path, words: tuple[str, ...], content: bytes
) -> None:
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        assert main(words) == 2
    size = f"{len(content) / 1e6:.1f} MB"
    assert (
        f"To download Qwen/Qwen3-0.6B-GGUF:Q8_0, {size}, to {hub_cache}, add --yes"
        in text.getvalue()
    )
    assert downloads(server) == []


@pytest.mark.parametrize(("reply", "code"), [(b"\n", 0), (b"n\n", 2)])
def test_run_asks_at_a_terminal_before_it_downloads_a_catalog_name(
    server: RawServer, hub_cache: Path, monkeypatch: pytest.MonkeyPatch, reply: bytes, code: int
) -> None:
    controller, terminal_fd = os.openpty()
    os.write(controller, reply)
    text = io.StringIO()
    with os.fdopen(terminal_fd) as terminal, contextlib.redirect_stderr(text):
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main(NAMED) == code
    os.close(controller)
    assert "Download Qwen/Qwen3-0.6B-GGUF:Q8_0, " in text.getvalue()
    assert len(downloads(server)) == (1 if code == 0 else 0)


def test_run_tries_the_next_repository_if_one_does_not_exist(
    raw_server: Callable[[Script], RawServer],
    content: bytes,
    hub_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve_file = hub_script({FILE: content}, lambda _, send: send(response("200 OK", {"Content-Length": str(len(content))}) + content))  # fmt: skip

    def script(request: Request, send: Send) -> None:
        is_missing = "/Qwen/Qwen3-0.6B-GGUF" in request.line
        if is_missing or "?search=" in request.line or "?author=" in request.line:
            send(response("404 Not Found", {"Content-Length": "0", "X-Error-Code": "RepoNotFound"}))
        else:
            serve_file(request, send)

    monkeypatch.setenv("HF_ENDPOINT", raw_server(script).address)
    assert main((*NAMED, "--yes")) == 0
    assert list(hub_cache.glob("models--unsloth--Qwen3-0.6B-GGUF/snapshots/*/*.gguf"))


def test_serve_downloads_a_catalog_name_and_starts_it(server: RawServer, hub_cache: Path) -> None:
    words = ("serve", "qwen3-0.6b:Q8_0", "--yes", "--json", "--port", "0", "-c", "512")
    command = [sys.executable, "-m", "edgekit", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = json.loads(process.stdout.readline())
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert output["event"] == "ready"
    assert len(downloads(server)) == 1
    assert list(hub_cache.glob("models--Qwen--Qwen3-0.6B-GGUF/snapshots/*/*.gguf"))


# --- edgekit download


def test_download_of_a_name_says_what_and_where(
    server: RawServer, content: bytes, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("download", "qwen3-0.6b:Q8_0")) == 0
    out, err = capsys.readouterr()
    first, path = out.splitlines()
    assert re.fullmatch(r"Qwen/Qwen3-0\.6B-GGUF:Q8_0, [0-9.]+ [kMG]B, downloaded", first)
    assert "downloading Qwen/Qwen3-0.6B-GGUF:Q8_0, " in err
    assert Path(path).read_bytes() == content
    assert Path(path).is_relative_to(hub_cache)
    assert len(downloads(server)) == 1
    before = len(server.requests)
    assert main(("download", "Qwen3 0.6B", "--quant", "Q8_0", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["files"], answer["downloaded_bytes"]) == ([path], 0)
    assert answer["size_bytes"] == len(content)
    assert len(server.requests) == before  # in the cache, nothing is requested


def test_download_says_how_a_misspelt_name_was_understood(
    server: RawServer, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("download", "quen3 0.6b:Q8_0")) == 0
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("edgekit: understood 'quen3 0.6b")
    assert second.startswith("downloading Qwen/Qwen3-0.6B-GGUF:Q8_0, ")
    assert len(downloads(server)) == 1
    assert list(hub_cache.iterdir())


@pytest.mark.parametrize("name", ["", " "])
def test_download_of_an_empty_name_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("download", name)) == 2
    assert "give the name of a model" in capsys.readouterr().err


def test_download_of_a_repository(
    server: RawServer, content: bytes, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("download", "acme/raw:Q4_K_M", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["downloaded_bytes"] == answer["size_bytes"] == len(content)
    assert Path(answer["files"][0]).name == "small-Q4_K_M.gguf"


def test_download_checks_the_disk_and_the_limit_first(
    server: RawServer,
    hub_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(("download", "acme/raw:Q8_0", "--limit", "1K")) == 2
    assert "more than --limit" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        usage = shutil.disk_usage(hub_cache.parent)
        patched.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        assert main(("download", "acme/raw:Q8_0")) == 4
    assert "free some space" in capsys.readouterr().err
    assert not downloads(server)
    assert main(("download", str(hub_cache.parent))) == 2


def test_download_of_a_name_without_a_known_repository(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(("download", "qwen3-0.6b:TQ2_0", "--offline")) == 2
    assert "no known repository has a GGUF of qwen3-0.6b at TQ2_0" in capsys.readouterr().err


def small_hub(
    raw_server: Callable[[Script], RawServer],
    files: dict[str, bytes],
    *,
    missing: tuple[str, ...] = (),
) -> RawServer:
    """A hub where every repository has these files, except those of `missing`, which do not exist."""

    def send_file(request: Request, send: Send) -> None:
        body = files[request.line.split()[1].rpartition("/")[2]]
        send(response("200 OK", {"Content-Length": str(len(body))}) + body)

    found = hub_script(files, send_file)

    def script(request: Request, send: Send) -> None:
        if any(f"/{repository}/" in request.line for repository in missing):
            send(response("404 Not Found", {"X-Error-Code": "RepoNotFound", "Content-Length": "0"}))
        else:
            found(request, send)

    return raw_server(script)


def got(server: RawServer) -> list[str]:
    """The names of the files that were fetched, in order."""
    return [request.line.split()[1].rpartition("/")[2] for request in downloads(server)]


def test_download_of_a_vision_model_has_the_projector_that_llama_cpp_would_load(
    raw_server: Callable[[Script], RawServer],
    content: bytes,
    hub_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {FILE: content, "mmproj-F32.gguf": b"F32", "mmproj-Q8_0.gguf": b"Q8"}
    server = small_hub(raw_server, files)
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    assert main(("download", "gemma-3-4b:Q8_0", "--no-mmproj", "--json")) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 1
    assert main(("download", "gemma-3-4b:Q8_0", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [Path(path).name for path in answer["files"]] == [FILE, "mmproj-Q8_0.gguf"]
    assert (answer["downloaded_bytes"], answer["size_bytes"]) == (2, len(content) + 2)
    assert got(server) == [FILE, "mmproj-Q8_0.gguf"]  # the weights were not fetched again
    before = len(server.requests)
    assert main(("download", "gemma-3-4b:Q8_0")) == 0
    assert "on this machine already" in capsys.readouterr().out
    assert len(server.requests) == before


@pytest.mark.parametrize("words", [("qwen3-8b:4bit",), ("Qwen3 8B", "--quant", "4bit")])
def test_download_of_a_name_for_mlx_has_the_tokenizer_and_the_weights_last(
    raw_server: Callable[[Script], RawServer],
    hub_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    weights = safetensors_header() + bytes(4096)
    texts = ("chat_template.jinja", "tokenizer.json", "tokenizer.model")
    config = json.dumps({"model_type": "llama"}).encode()
    files = {"README.md": b"-", "config.json": config, "model.safetensors": weights}
    server = small_hub(
        raw_server, files | dict.fromkeys(texts, b"{}"), missing=("Qwen/Qwen3-8B-MLX-4bit",)
    )
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    assert main(("download", *words)) == 0
    first, path = capsys.readouterr().out.splitlines()
    assert first.startswith("mlx-community/Qwen3-8B-4bit, ")
    assert Path(path).read_bytes() == weights
    *others, last = [name for name in got(server) if name != "config.json"]
    assert (sorted(others), last) == ([*texts], "model.safetensors")
    before = len(server.requests)
    assert main(("download", *words, "--offline")) == 0
    assert len(server.requests) == before


def test_download_says_which_repositories_are_gone(
    raw_server: Callable[[Script], RawServer],
    hub_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = ("Qwen", "mlx-community", "lmstudio-community")
    monkeypatch.setenv("HF_ENDPOINT", small_hub(raw_server, {}, missing=gone).address)
    assert main(("download", "qwen3-8b:4bit")) == 4
    assert "none of Qwen/Qwen3-8B-MLX-4bit, mlx-community/Qwen3-8B-4bit" in capsys.readouterr().err


@pytest.mark.parametrize("quant", ["XX", "TQ2_0"])
def test_download_refuses_a_quantisation_that_no_repository_has(
    quant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("download", "qwen3-8b", "--quant", quant, "--offline")) == 2
    assert (
        f"no known repository has a GGUF of qwen3-8b at {quant} (known: " in capsys.readouterr().err
    )
