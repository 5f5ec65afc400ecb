"""`edgekit run` of a model on a hub: the verdict by ranges, the download only after it, then the run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hub.raw_server import Asked, RawServer, Say, Script, answer, hub_of
from tests.runnable import write_chatting

from edgekit.cli import main

FILE = "small-Q8_0.gguf"


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
    """It keeps to ranges, as the hub does."""

    def send(asked: Asked, say: Say) -> None:
        first, last, status = 0, len(content) - 1, "200 OK"
        headers = {}
        if "range" in asked.headers:
            start, _, end = asked.headers["range"].removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end or last), last)
            status = "206 Partial Content"
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        body = content[first : last + 1]
        say(answer(status, {**headers, "Content-Length": str(len(body))}) + body)

    found = raw_server(hub_of({FILE: content}, send))
    monkeypatch.setenv("HF_ENDPOINT", found.address)
    return found


def downloads(server: RawServer) -> list[Asked]:
    """Requests for all of a file: a look at its header asks for a range from the start to somewhere."""
    gets = [one for one in server.asked if one.line.startswith("GET /acme/raw/resolve/")]
    return [one for one in gets if one.headers.get("range", "bytes=0-").endswith("-")]


def test_downloaded_after_the_verdict_and_run(
    server: RawServer, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", "acme/raw:Q8_0", "--engine", "stream", "-p", "Hello", "-n", "2", "--raw")
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out
    assert "as billed" in err
    assert len(downloads(server)) == 1
    assert next(hub_cache.glob("models--*/snapshots/*/*.gguf")).name == FILE
    before = len(server.asked)
    assert main((*words, "--offline")) == 0  # it is here now
    assert len(server.asked) == before


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("-c", "900000000"), 3, "Does not fit"),
        (("--no-download",), 4, "was not allowed"),
        (("--download-up-to", "10K"), 4, "was not allowed"),
    ],
)
def test_nothing_is_downloaded_for_a_no(
    server: RawServer, hub_cache: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        found = main(("run", "acme/raw:Q8_0", "--engine", "stream", "-p", "Hello", *words))
    assert (found, told in said.getvalue()) == (code, True)
    assert downloads(server) == []
    assert not list(hub_cache.glob("models--*/blobs/*"))
