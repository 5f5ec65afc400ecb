"""The full download into the hub's cache: only after consent, and without leaving partial files."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from huggingface_hub import constants, file_download
from tests.hub.hub_files import gguf_header
from tests.hub.nginx_hub import COMMIT, SIGNATURE, TOKEN, Hub
from tests.hub.raw_server import RawServer, Request, Script, Send, hub_script, response
from tests.patience import PATIENCE_S, wait_until

from edgekit.errors import (
    HeaderError,
    RangeNotSupportedError,
    RemoteAccessError,
    RemoteChangedError,
    RemoteInspectError,
    RemoteNotFoundError,
    RemoteTimeoutError,
    SourceError,
)
from edgekit.formats import read_header
from edgekit.model import open_model
from edgekit.sources import download as fetch
from edgekit.sources.download import SPARE_BYTES, Download, download_model, library_error
from edgekit.sources.locator import locate
from edgekit.sources.types import Origin, Reach

Server = Callable[[Script], RawServer]
WHY = RangeNotSupportedError("no ranges here")
HEADER = gguf_header()
CONTENT = HEADER + bytes(range(256)) * 4096  # a header and 1 MiB
PIECE = 65_536  # bytes that huggingface_hub writes at a time in these tests


def yes(_: Download) -> bool:
    return True


def never(_: Download) -> bool:
    raise AssertionError("no question is expected")


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", PIECE)
    monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setattr(fetch, "FIRST_PAUSE_S", 0.0)
    return folder


@pytest.fixture
def raw_hub(raw_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    def start(script: Script) -> RawServer:
        server = raw_server(script)
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        return server

    return start


def header_error(reference: str, reach: Reach) -> RemoteInspectError:
    """The error of reading the header alone, which must fail."""
    with pytest.raises(RemoteInspectError) as caught:
        read_header(locate(reference, reach=reach))
    return caught.value


def blobs(folder: Path) -> list[str]:
    """The names of all blobs, complete or not."""
    return sorted(path.name for path in folder.glob("models--*/blobs/*"))


def links(folder: Path) -> list[str]:
    root = folder.glob("models--*/snapshots/*")
    return sorted(
        str(path.relative_to(item)) for item in root for path in item.rglob("*") if path.is_file()
    )


def gets(server: RawServer) -> list[Request]:
    return [
        request for request in server.requests if request.line.startswith("GET /acme/raw/resolve/")
    ]


def file_response(request: Request, content: bytes, until: int | None = None) -> bytes:
    """The response to a whole or a resumed download; `until` cuts the body short."""
    headers, status, first = {}, "200 OK", 0
    if "range" in request.headers:
        first = request.first_byte
        status = "206 Partial Content"
        headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
    headers["Content-Length"] = str(len(content) - first)
    return response(status, headers) + content[first:until]


@pytest.mark.parametrize(
    ("reference", "names", "weights_bytes"),
    [
        ("acme/whole-GGUF", ["whole-Q4_K_M.gguf"], 1 << 20),
        ("acme/whole-GGUF:Q8_0", ["whole-Q8_0.gguf"], 1 << 20),
        ("acme/whole-GGUF@main:Q8_0", ["whole-Q8_0.gguf"], 1 << 20),
        ("acme/whole-GGUF/whole-Q8_0.gguf", ["whole-Q8_0.gguf"], 1 << 20),
        (
            "acme/whole-split-GGUF",
            ["split-Q4_K_M-00001-of-00002.gguf", "split-Q4_K_M-00002-of-00002.gguf"],
            2 << 20,
        ),
        (
            "acme/whole-llama",
            [
                "config.json",
                "hf_quant_config.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
            ],
            256 << 10,
        ),
    ],
)
def test_files_are_downloaded_if_ranges_are_not_supported(
    hub: Hub, reach: Reach, hub_cache: Path, *, reference: str, names: list[str], weights_bytes: int
) -> None:
    why = header_error(reference, reach)
    assert isinstance(why, RangeNotSupportedError)
    requests: list[Download] = []

    def confirm(download: Download) -> bool:
        requests.append(download)
        assert not hub_cache.exists()  # nothing is written before consent
        return True

    result = download_model(reference, why, confirm=confirm, reach=reach)
    (download,) = requests
    assert (download.folder, download.because) == (hub_cache, str(why))
    assert weights_bytes < download.size_bytes < weights_bytes + 4096  # and their headers
    assert links(hub_cache) == names
    assert (result.origin, result.reference) == (Origin.HUB_CACHE, reference)
    assert result.notes[-1].startswith("downloaded in full (")
    assert result.notes[-1].endswith(f": the header alone was not enough ({why})")
    assert read_header(result).tensors
    (ref,) = hub_cache.glob("models--*/refs/main")
    assert ref.read_text() == COMMIT  # so that other programs find it offline
    assert read_header(locate(reference, reach=replace(reach, network=False))).tensors


def test_download_follows_a_timeout(hub: Hub, reach: Reach, hub_cache: Path) -> None:
    slow = replace(reach, total_timeout_s=1e-6)
    assert isinstance(header_error("acme/whole-GGUF", slow), RemoteTimeoutError)
    result = open_model("acme/whole-GGUF", confirm=yes, reach=slow)
    assert result.model.header.tensors
    assert links(hub_cache) == ["whole-Q4_K_M.gguf"]
    with pytest.raises(RemoteTimeoutError, match="was not allowed"):
        open_model("acme/whole-GGUF:Q8_0", confirm=None, reach=slow)


def test_download_is_announced_with_the_file_name(
    hub: Hub,
    reach: Reach,
    hub_cache: Path,
    *,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TQDM_POSITION", "-1")  # tqdm: shows a bar even without a terminal
    lines: list[str] = []
    download_model("acme/whole-GGUF", WHY, confirm=yes, reach=replace(reach, progress=lines.append))
    assert caplog.record_tuples == [
        (
            "edgekit",
            logging.WARNING,
            f"the header alone was not enough (no ranges here); downloading 1.00 MiB to {hub_cache}",
        )
    ]
    bar = capsys.readouterr().err
    assert "whole-Q4_K_M.gguf: 100%" in bar
    assert SIGNATURE.partition("=")[2] not in bar
    assert lines == ["acme/whole-GGUF:Q4_K_M: looking up file sizes", ""]


def test_refused_download_raises_the_first_error_with_a_hint(
    hub: Hub, reach: Reach, hub_cache: Path
) -> None:
    with pytest.raises(RangeNotSupportedError) as caught:
        download_model("acme/whole-GGUF", WHY, confirm=lambda _: False, reach=reach)
    assert str(caught.value) == (
        "no ranges here. The full download of 1.00 MiB may be enough, but was not allowed: "
        "--download-up-to SIZE allows it for one model, allow_download=True in Python"
    )
    assert not hub_cache.exists()


def test_no_request_without_a_way_to_confirm(hub: Hub, reach: Reach) -> None:
    with pytest.raises(RangeNotSupportedError, match=r"no ranges here\. A full download may"):
        download_model("acme/whole-GGUF", WHY, confirm=None, reach=reach)
    assert hub.log("hub") == []


@pytest.mark.parametrize(
    "reference",
    [
        "llama3.2:1b",
        "ollama:tiny:latest",
        "{cdn}/whole/acme/whole-GGUF/whole-Q8_0.gguf",
        "./m.gguf",
    ],
)
def test_references_outside_the_hub_are_not_downloaded(
    hub: Hub, reach: Reach, reference: str
) -> None:
    with pytest.raises(RangeNotSupportedError) as caught:
        download_model(reference.format(cdn=hub.cdn), WHY, confirm=never, reach=reach)
    assert caught.value is WHY
    assert hub.log("hub") == []


@pytest.mark.parametrize("by", ["reach", "HF_HUB_OFFLINE"])
def test_nothing_is_downloaded_offline(
    hub: Hub, reach: Reach, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by != "reach":
        monkeypatch.setenv(by, "1")
    with pytest.raises(RangeNotSupportedError) as caught:
        download_model(
            "acme/whole-GGUF", WHY, confirm=never, reach=replace(reach, network=by != "reach")
        )
    assert caught.value is WHY
    assert hub.log("hub") == []


def test_missing_files_are_not_requested_again(hub: Hub, reach: Reach) -> None:
    missing = RemoteNotFoundError("no such repository")
    with pytest.raises(RemoteNotFoundError) as caught:
        download_model("acme/nothing", missing, confirm=never, reach=reach)
    assert caught.value is missing
    assert hub.log("hub") == []


def test_refused_download_keeps_the_header_error(hub: Hub, reach: Reach) -> None:
    broken = HeaderError("no sense", file="a.gguf", offset=3)
    with pytest.raises(HeaderError) as caught:
        download_model("acme/whole-GGUF", broken, confirm=lambda _: False, reach=reach)
    assert caught.value is broken


def test_gated_model_fails_before_the_question(hub: Hub, reach: Reach, hub_cache: Path) -> None:
    why = header_error("acme/gated-GGUF", reach)
    assert isinstance(why, RemoteAccessError)
    with pytest.raises(RemoteAccessError) as caught:
        download_model("acme/gated-GGUF", why, confirm=never, reach=reach)
    assert str(caught.value) == (
        f"acme/gated-GGUF/gated-Q4_K_M.gguf: the model is gated ({hub.endpoint[7:]} answered 401); "
        "accept its terms on the model's page, then log in with `hf auth login`, or set HF_TOKEN"
    )
    assert not hub_cache.exists()


def test_token_opens_a_gated_model_and_is_only_sent_to_the_hub(
    hub: Hub, reach: Reach, monkeypatch: pytest.MonkeyPatch, hub_cache: Path
) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    download_model("acme/gated-GGUF", WHY, confirm=yes, reach=reach)
    assert links(hub_cache) == ["gated-Q4_K_M.gguf"]
    assert all(line.endswith(f"auth=[Bearer {TOKEN}]") for line in hub.log("hub"))
    assert all(line.endswith("auth=[-]") for line in hub.log("cdn"))


def test_cached_files_are_neither_confirmed_nor_fetched(
    hub: Hub, reach: Reach, hub_cache: Path
) -> None:
    download_model("acme/whole-split-GGUF", WHY, confirm=yes, reach=reach)
    hub.clear_logs()
    result = download_model("acme/whole-split-GGUF", WHY, confirm=never, reach=reach)
    assert result.notes == (
        "read from the hub cache: the header alone was not enough (no ranges here)",
    )
    assert hub.log("cdn") == []


def test_only_the_missing_shard_is_downloaded(hub: Hub, reach: Reach, hub_cache: Path) -> None:
    download_model("acme/whole-split-GGUF", WHY, confirm=yes, reach=reach)
    (second,) = hub_cache.glob("models--*/snapshots/*/*-00002-*")
    second.resolve().unlink()
    second.unlink()
    requests: list[Download] = []

    def confirm(download: Download) -> bool:
        requests.append(download)
        return True

    download_model("acme/whole-split-GGUF", WHY, confirm=confirm, reach=reach)
    assert requests[0].size_bytes == second.stat().st_size


@pytest.mark.parametrize(("short_bytes", "fits"), [(0, True), (1, False)])
def test_free_disk_space_is_checked_first(
    hub: Hub,
    reach: Reach,
    hub_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    short_bytes: int,
    *,
    fits: bool,
) -> None:
    needed = len(HEADER) + (1 << 20) + SPARE_BYTES
    usage = SimpleNamespace(total=1 << 40, used=0, free=needed - short_bytes)
    checked: list[Path] = []

    def disk_usage(place: Path) -> SimpleNamespace:
        checked.append(place)
        if not Path(place).exists():
            raise FileNotFoundError(place)
        return usage

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    if fits:
        download_model("acme/whole-GGUF", WHY, confirm=yes, reach=reach)
        return
    with pytest.raises(SourceError) as caught:
        download_model("acme/whole-GGUF", WHY, confirm=never, reach=reach)
    assert str(caught.value) == (
        "acme/whole-GGUF:Q4_K_M: the full download needs 1.00 MiB plus 256.00 MiB to spare, and the disk with "
        f"{hub_cache} has 257.00 MiB free: free some space, or set HF_HUB_CACHE to a folder on another disk. "
        "The header alone was not enough: no ranges here"
    )
    assert checked == [hub_cache, hub_cache.parent]
    assert not hub_cache.exists()


def test_dropped_connection_is_resumed_where_it_broke(
    raw_hub: Server, reach: Reach, hub_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = 5 * PIECE + 1000

    def cut_first_response(request: Request, send: Send) -> None:
        send(file_response(request, CONTENT, until=None if "range" in request.headers else cut))

    server = raw_hub(hub_script({"a.gguf": CONTENT}, cut_first_response))
    result = download_model("acme/raw", WHY, confirm=yes, reach=reach)
    first, second = gets(server)
    assert "range" not in first.headers
    assert second.headers["range"] == f"bytes={5 * PIECE}-"  # an incomplete piece is lost
    file = result.weights[0].open()
    assert file.read(0, len(CONTENT) + 1) == CONTENT
    file.close()
    assert blobs(hub_cache) == ["a.gguf-1"]
    assert any("Trying to resume" in record.message for record in caplog.records)


def test_reset_connection_restarts_the_file(
    raw_hub: Server, reach: Reach, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub does not resume after a reset, so EdgeKit calls it again."""
    server = raw_hub(
        hub_script({"a.gguf": CONTENT}, lambda request, send: send(file_response(request, CONTENT)))
    )
    real, failures = file_download.http_get, [httpx2.ReadError("reset by peer")]

    def reset_once(url: str, temp_file: object, **rest: object) -> None:
        if failures:
            raise failures.pop()
        real(url, temp_file, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(file_download, "http_get", reset_once)
    download_model("acme/raw", WHY, confirm=yes, reach=reach)
    assert (len(gets(server)), blobs(hub_cache)) == (1, ["a.gguf-1"])


@pytest.mark.parametrize("until", [0, 1000])
def test_endless_drops_end_with_an_error_and_no_file(
    raw_hub: Server, reach: Reach, hub_cache: Path, until: int
) -> None:
    def script(request: Request, send: Send) -> None:
        send(file_response(request, CONTENT, until=until))

    server = raw_hub(hub_script({"a.gguf": CONTENT}, script))
    with pytest.raises(
        RemoteInspectError, match=r"^acme/raw/a.gguf: 127.0.0.1:\d+ closed the connection; try"
    ):
        download_model("acme/raw", WHY, confirm=yes, reach=reach)
    assert len(gets(server)) == fetch.MAX_TRIES * 6  # huggingface_hub resumes five times
    assert (blobs(hub_cache), links(hub_cache)) == ([], [])


def test_server_that_always_restarts_is_given_up(
    raw_hub: Server, reach: Reach, hub_cache: Path
) -> None:
    """huggingface_hub alone would retry for ever, because each attempt receives some bytes."""

    def script(request: Request, send: Send) -> None:
        request.headers.pop("range", None)
        send(file_response(request, CONTENT, until=3 * PIECE))

    server = raw_hub(hub_script({"a.gguf": CONTENT}, script))
    with pytest.raises(RemoteChangedError, match="was lost 4 times, and this server cannot resume"):
        download_model("acme/raw", WHY, confirm=yes, reach=reach)
    assert len(gets(server)) == 5
    assert blobs(hub_cache) == []


SHARDS = {f"m-Q8_0-{number:05d}-of-00002.gguf": CONTENT for number in (1, 2)}


def test_finished_shard_is_kept_for_the_next_run(
    raw_hub: Server, reach: Reach, hub_cache: Path
) -> None:
    is_up = [False]

    def script(request: Request, send: Send) -> None:
        is_lost = "-00002-" in request.line and not is_up[0]
        send(file_response(request, CONTENT, until=0 if is_lost else None))

    server = raw_hub(hub_script(SHARDS, script))
    with pytest.raises(RemoteInspectError, match=r"00002-of-00002.gguf: .* closed the connection"):
        download_model("acme/raw", WHY, confirm=yes, reach=reach)
    first, second = SHARDS
    assert (blobs(hub_cache), links(hub_cache)) == ([f"{first}-1"], [first])
    assert not list(hub_cache.glob("models--*/refs/*"))  # main changes only with the last file
    is_up[0] = True
    server.requests.clear()
    download_model("acme/raw", WHY, confirm=yes, reach=reach)
    assert [request.line.split("/")[-2] for request in gets(server)] == [f"{second} HTTP"]
    assert links(hub_cache) == [first, second]


def test_failed_update_leaves_the_old_version_usable(
    raw_hub: Server, reach: Reach, hub_cache: Path
) -> None:
    """huggingface_hub alone would point main at the new commit before its files are there."""
    repository = hub_cache / "models--acme--raw"
    old = "01d" * 13 + "0"
    (repository / "snapshots" / old).mkdir(parents=True)
    (repository / "snapshots" / old / "a.gguf").write_bytes(HEADER + bytes(1024))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(old)
    raw_hub(
        hub_script(
            {"a.gguf": CONTENT},
            lambda request, send: send(file_response(request, CONTENT, until=PIECE + 1)),
        )
    )
    with pytest.raises(RemoteInspectError, match="closed the connection"):
        download_model("acme/raw", WHY, confirm=yes, reach=reach)
    old_files = locate("acme/raw", reach=replace(reach, network=False))
    assert old_files.weights[0].size_bytes == len(HEADER) + 1024


@pytest.mark.parametrize("chunked", [False, True])
def test_download_never_exceeds_the_confirmed_size(
    raw_hub: Server, reach: Reach, hub_cache: Path, *, chunked: bool
) -> None:
    written: list[int] = []

    def script(request: Request, send: Send) -> None:
        headers = {"Transfer-Encoding": "chunked", "Content-Length": ""}
        send(response("200 OK", headers if chunked else {"Content-Length": str(1 << 40)}))
        for _ in range(1000):
            send(b"10000\r\n" + b"\0" * PIECE + b"\r\n" if chunked else b"\0" * PIECE)
            written.extend(path.stat().st_size for path in hub_cache.glob("models--*/blobs/*"))

    server = raw_hub(hub_script({"a.gguf": CONTENT}, script))
    with pytest.raises(RemoteChangedError, match=f"sends more than the {len(CONTENT):,} bytes"):
        download_model("acme/raw", WHY, confirm=yes, reach=reach)
    assert max(written) <= len(CONTENT)
    assert len(gets(server)) == 1  # it is not retried
    assert blobs(hub_cache) == []


def test_understated_listing_is_detected_before_the_question(
    raw_hub: Server, reach: Reach, hub_cache: Path
) -> None:
    raw_hub(hub_script({"a.gguf": CONTENT}, lambda *_: None, listed={"a.gguf": 10}))
    with pytest.raises(
        RemoteChangedError, match=f"listed with 10 bytes, but the server sends {len(CONTENT):,}"
    ):
        download_model("acme/raw", WHY, confirm=never, reach=reach)
    assert not hub_cache.exists()


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Repo-Commit": ""},
        {"X-Repo-Commit": "../../etc"},
        {"ETag": ""},
        {"ETag": '"../../../escaped"'},
        {"ETag": '".."'},
    ],
)
def test_invalid_names_from_a_hub_are_refused(
    raw_hub: Server, reach: Reach, hub_cache: Path, headers: dict[str, str]
) -> None:
    plain_hub = hub_script({"a.gguf": CONTENT}, lambda *_: None)

    def script(request: Request, send: Send) -> None:
        if not request.line.startswith("HEAD"):
            plain_hub(request, send)
            return
        fields = {
            "X-Repo-Commit": COMMIT,
            "ETag": '"a"',
            "Content-Length": str(len(CONTENT)),
            **headers,
        }
        send(response("200 OK", fields))

    raw_hub(script)
    with pytest.raises(RemoteInspectError, match="does not report the commit and hash"):
        download_model("acme/raw", WHY, confirm=never, reach=reach)
    assert not hub_cache.exists()


@pytest.mark.parametrize(("tries", "arrives"), [(1, True), (2, True), (3, False)])
def test_busy_hub_is_retried(
    raw_hub: Server, reach: Reach, hub_cache: Path, tries: int, *, arrives: bool
) -> None:
    busy = [response("503 Service Unavailable", {"Retry-After": "3600"})] * tries
    plain_hub = hub_script(
        {"a.gguf": CONTENT}, lambda request, send: send(file_response(request, CONTENT))
    )

    def script(request: Request, send: Send) -> None:
        if request.line.startswith("HEAD") and busy:
            send(busy.pop())
        else:
            plain_hub(request, send)

    raw_hub(script)
    if arrives:
        download_model("acme/raw", WHY, confirm=yes, reach=reach)
        assert blobs(hub_cache) == ["a.gguf-1"]
        return
    with pytest.raises(RemoteInspectError, match=r"answered 503; try again later$"):
        download_model("acme/raw", WHY, confirm=never, reach=reach)


def test_unwritable_folder_is_an_error(hub: Hub, reach: Reach, hub_cache: Path) -> None:
    hub_cache.write_bytes(b"a file")
    with pytest.raises(SourceError, match=r"cannot write to .* set HF_HUB_CACHE"):
        download_model("acme/whole-GGUF", WHY, confirm=yes, reach=reach)
    assert hub_cache.read_bytes() == b"a file"


CHILD = """
import sys
from edgekit.errors import EdgekitError, RemoteInspectError
from edgekit.sources.download import download_model
if sys.argv[1] == "limited":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))
try:
    download_model("acme/raw", RemoteInspectError("why"), confirm=lambda _: True)
except KeyboardInterrupt:
    print("interrupted")
except EdgekitError as error:
    print(error)
"""


def start_child(how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no resource limits there")
def test_disk_that_fills_up_during_a_download(raw_hub: Server, hub_cache: Path) -> None:
    """A limit on the file size stops the write, as a full disk does."""
    files = {"config.json": b"{}", "model.safetensors": CONTENT}
    raw_hub(
        hub_script(
            files,
            lambda request, send: send(
                file_response(request, files[request.line.split("/")[-2][:-5]])
            ),
        )
    )
    process = start_child("limited")
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert printed == (
        f"acme/raw/model.safetensors: the disk with {hub_cache} is full, or your quota on it is used up; unfinished "
        "files were removed: free some space, or set HF_HUB_CACHE to a folder on another disk\n"
    )
    assert (blobs(hub_cache), links(hub_cache)) == (["config.json-1"], ["config.json"])


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_ctrl_c_keeps_only_finished_files(raw_hub: Server, hub_cache: Path) -> None:
    def script(request: Request, send: Send) -> None:
        is_stuck = "-00002-" in request.line
        send(file_response(request, CONTENT, until=len(CONTENT) - 1000 if is_stuck else None))
        if is_stuck:
            request.hang()

    raw_hub(hub_script(SHARDS, script))
    other_download = hub_cache / "models--acme--raw/blobs/other.12345678.incomplete"
    other_download.parent.mkdir(parents=True)
    other_download.write_bytes(b"of another process")
    first = next(iter(SHARDS))
    process = start_child("interrupted")
    # While a file is renamed, a listing may show both names: three blobs alone do not mean the second shard.
    wait_until(
        lambda: (
            (len(blobs(hub_cache)) == 3 and links(hub_cache) == [first])
            or process.poll() is not None
        )
    )
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert printed == "interrupted\n"
    assert blobs(hub_cache) == [f"{first}-1", other_download.name]
    assert links(hub_cache) == [first]


def test_logs_hide_signatures(
    hub: Hub, reach: Reach, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    def cut(url: str, *_: object, **__: object) -> None:
        logging.getLogger("huggingface_hub.file_download").warning(
            "Error while downloading from %s", url
        )
        lines.append(url)
        raise httpx2.RemoteProtocolError("cut")

    monkeypatch.setattr(file_download, "http_get", cut)
    with pytest.raises(RemoteInspectError) as caught:
        download_model("acme/whole-GGUF", WHY, confirm=yes, reach=reach)
    assert all(SIGNATURE in line for line in lines)
    assert "Error while downloading from http://localhost" in caplog.text
    assert SIGNATURE.partition("=")[2] not in caplog.text + str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left"), SourceError, "the disk with .* is full"),
        (OSError(errno.EDQUOT, "Quota"), SourceError, "is full, or your quota"),
        (RuntimeError("No space left on device"), SourceError, "is full"),
        (PermissionError(errno.EACCES, "Denied", "/x"), SourceError, "cannot write to /x"),
        (OSError("Consistency check failed: size 3"), RemoteInspectError, "Consistency check"),
        (httpx2.ConnectError("refused"), RemoteInspectError, "cannot reach 127.0.0.1:9 .refused."),
        (httpx2.ReadTimeout("slow"), RemoteInspectError, "127.0.0.1:9 stopped sending"),
        (RecursionError("too deep"), RemoteInspectError, "RecursionError: too deep"),
        (
            RuntimeError("at https://a.example/?sig=s3cr3t"),
            RemoteInspectError,
            r"failed \(RuntimeError\)",
        ),
    ],
)
def test_library_errors_become_one_sentence(
    error: Exception,
    kind: type[Exception],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    translated = library_error(
        error, name="acme/a", url="http://127.0.0.1:9/a", token_sent=False, folder=tmp_path
    )
    assert type(translated) is kind
    assert os.linesep not in str(translated)
    with pytest.raises(kind, match=f"^acme/a: .*{sentence}"):
        raise translated
