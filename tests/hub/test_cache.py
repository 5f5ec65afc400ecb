"""Header bytes cached on disk: used again only while the file on the server is unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.hub.hub_files import gguf_header, write_gguf
from tests.hub.nginx_hub import SIGNATURE, TOKEN, Hub
from tests.hub.raw_server import RawServer, Script, range_response

from edgekit.errors import RemoteAccessError, RemoteInspectError
from edgekit.sources import cache
from edgekit.sources.http import Transport
from edgekit.sources.hub import locate_hub
from edgekit.sources.reference import HubModel
from edgekit.sources.remote import HttpFile
from edgekit.sources.types import Reach, Traffic

Server = Callable[[Script], RawServer]
HEADER = gguf_header(vocabulary=50_000)  # 1,000,361 bytes
LARGE = HubModel(repo="acme/large-GGUF", filename="large-Q4_K_M.gguf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "headers"


def fresh(reach: Reach, *, on: bool = True) -> Reach:
    return replace(reach, cache=on, traffic=Traffic())


def read_and_cache(url: str, reach: Reach, length: int = 1_000_000) -> bytes:
    file = HttpFile(Transport(reach), url, name="the file")
    read = file.read(0, length)
    file.keep()
    file.close()
    return read


@pytest.fixture
def cached_url(hub: Hub, reach: Reach) -> str:
    """The address of a file whose first million bytes are in the cache."""
    write_gguf(hub.root / "cdn/kept.gguf", HEADER, weights_bytes=1 << 20)
    url = f"{hub.cdn}/kept.gguf"
    read_and_cache(url, fresh(reach))
    hub.clear_logs()
    return url


def test_second_read_takes_one_request_without_a_body(
    hub: Hub, cached_url: str, reach: Reach
) -> None:
    again = fresh(reach)
    assert read_and_cache(cached_url, again) == HEADER[:1_000_000]
    assert again.traffic == Traffic(requests=1, received_bytes=0, ranges=1, cached_bytes=1_000_000)
    assert hub.log("cdn") == ["GET /kept.gguf 304 bytes=0-524287 auth=[-]"]


def test_second_read_from_the_hub_stops_at_the_redirect(hub: Hub, reach: Reach) -> None:
    """The redirect carries the hash of the content, so the CDN gets no request."""
    for expected_cdn in (1, 0):
        hub.clear_logs()
        file = locate_hub(LARGE, fresh(reach)).weights[0].open()
        assert isinstance(file, HttpFile)
        assert file.read(0, 4) == b"GGUF"
        file.keep()
        file.close()
        assert (len(hub.log("hub")), len(hub.log("cdn"))) == (1, expected_cdn)


def test_longer_read_continues_where_the_cached_prefix_ends(hub: Hub, reach: Reach) -> None:
    for _ in range(2):
        hub.clear_logs()
        file = locate_hub(LARGE, fresh(reach)).weights[0].open()
        assert isinstance(file, HttpFile)
        start = file.available_bytes
        file.read(start, 10)
        file.keep()
        file.close()
    assert start == 786_432
    assert [line.split()[3] for line in hub.log("cdn")] == ["bytes=786432-1048575"]
    reopened = locate_hub(LARGE, fresh(reach)).weights[0].open()
    assert isinstance(reopened, HttpFile)
    assert reopened.available_bytes == 1_048_576
    reopened.close()


def test_changed_file_is_read_again(hub: Hub, cached_url: str, reach: Reach) -> None:
    other = gguf_header(architecture="qwen3", vocabulary=50_000)
    write_gguf(hub.root / "cdn/kept.gguf", other, weights_bytes=1 << 20)
    os.utime(hub.root / "cdn/kept.gguf", (1, 1))
    again = fresh(reach)
    assert read_and_cache(cached_url, again) == other[:1_000_000]
    assert again.traffic.cached_bytes == 0
    assert read_and_cache(cached_url, last := fresh(reach)) == other[:1_000_000]
    assert last.traffic.received_bytes == 0


def test_server_without_conditional_requests_still_confirms_the_entry(
    raw_server: Server, reach: Reach
) -> None:
    server = raw_server(
        lambda request, send: send(range_response(HEADER, request, {"ETag": '"a"'}))
    )
    for _ in range(2):
        last = fresh(reach)
        assert read_and_cache(server.address + "/a.gguf", last) == HEADER[:1_000_000]
    assert last.traffic.requests == 1
    assert server.requests[-1].headers["if-none-match"] == '"a"'


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"a"'}])
def test_nothing_is_cached_without_a_strong_validator(
    raw_server: Server, reach: Reach, folder: Path, headers: dict[str, str]
) -> None:
    server = raw_server(lambda request, send: send(range_response(HEADER, request, headers)))
    read_and_cache(server.address + "/a.gguf", fresh(reach))
    assert not folder.exists()


def test_nothing_is_cached_unless_keep_is_called(hub: Hub, reach: Reach, folder: Path) -> None:
    write_gguf(hub.root / "cdn/kept.gguf", HEADER, weights_bytes=0)
    file = HttpFile(Transport(fresh(reach)), f"{hub.cdn}/kept.gguf", name="the file")
    file.read(0, 600_000)
    file.close()
    assert not folder.exists()


def test_disabled_cache_is_neither_read_nor_written(
    hub: Hub, cached_url: str, reach: Reach, folder: Path
) -> None:
    (entry,) = folder.iterdir()
    before = entry.stat()
    off = fresh(reach, on=False)
    read_and_cache(cached_url, off)
    assert (off.traffic.cached_bytes, off.traffic.received_bytes) == (0, 1_000_000)
    assert entry.stat().st_mtime_ns == before.st_mtime_ns


def test_no_secret_is_written_to_the_cache(
    hub: Hub, reach: Reach, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    file = locate_hub(HubModel(repo="acme/gated-GGUF"), fresh(reach)).weights[0].open()
    assert isinstance(file, HttpFile)
    file.keep()
    file.close()
    written = b"".join(entry.read_bytes() for entry in folder.iterdir())
    assert b"resolve/main/gated-Q4_K_M.gguf" in written
    assert b"api/models/acme/gated-GGUF/tree/main" in written  # the listing is cached as well
    assert TOKEN.encode() not in written
    assert SIGNATURE.partition("=")[2].encode() not in written


@pytest.mark.parametrize("extra", ["?sig=1", "me:pw@"])
def test_address_with_a_secret_is_not_cached(
    hub: Hub, reach: Reach, folder: Path, extra: str
) -> None:
    write_gguf(hub.root / "cdn/kept.gguf", HEADER, weights_bytes=0)
    url = f"{hub.cdn}/kept.gguf"
    secret = url + extra if extra.startswith("?") else url.replace("//", f"//{extra}")
    read_and_cache(secret, fresh(reach))
    assert not folder.exists()


def test_cached_header_of_a_gated_model_needs_the_token(
    hub: Hub, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HubModel(repo="acme/gated-GGUF", filename="gated-Q4_K_M.gguf")
    with monkeypatch.context() as with_token:
        with_token.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
        with_token.setenv("HF_TOKEN", TOKEN)
        file = locate_hub(model, fresh(reach)).weights[0].open()
        assert isinstance(file, HttpFile)
        file.keep()
        file.close()
    with pytest.raises(RemoteAccessError):
        locate_hub(model, fresh(reach)).weights[0].open()


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
        lambda raw: b"",
        lambda raw: b"not json\n" + raw,
        lambda raw: b"[" * 8000 + raw,
        lambda raw: raw.replace(b'"format": 1', b'"format": 2', 1),
        lambda raw: raw.replace(b'"length": ', b'"length": -', 1),
        lambda raw: raw.replace(b'"total_bytes": ', b'"total_bytes": "x", "y": ', 1),
        lambda raw: raw.replace(b"/kept.gguf", b"/lept.gguf", 1),
        lambda raw: raw.replace(b'"etag": "', b'"etag": 5, "x": "', 1),
        lambda raw: b"\0" * 100_000,
    ],
)
def test_damaged_entry_is_ignored_and_removed(
    cached_url: str, reach: Reach, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    (entry,) = folder.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert cache.load(cached_url) is None
    assert not entry.exists()
    again = fresh(reach)
    assert read_and_cache(cached_url, again) == HEADER[:1_000_000]
    assert again.traffic.cached_bytes == 0


def test_oldest_entries_are_removed_beyond_the_limit(
    hub: Hub, reach: Reach, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 2 * 530_000)
    urls = [f"{hub.cdn}/prune{number}.gguf" for number in range(3)]
    for number, url in enumerate(urls):
        write_gguf(hub.root / f"cdn/prune{number}.gguf", HEADER, weights_bytes=0)
        read_and_cache(url, fresh(reach), length=100)
        for age, path in enumerate(sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime)):
            os.utime(path, (1000 + age, 1000 + age))
        if number == 1:
            entry = cache.load(urls[0])  # used just now: the second is the oldest
            assert entry is not None
            entry.prefix.close()
    entries = [cache.load(url) for url in urls]
    assert [entry is not None for entry in entries] == [True, False, True]
    for entry in entries:
        if entry is not None:
            entry.prefix.close()


def test_temporary_files_of_a_dead_writer_are_removed(
    cached_url: str, reach: Reach, folder: Path
) -> None:
    old, new = folder / "old.part", folder / "new.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    entry = cache.load(cached_url)
    assert entry is not None
    cache.store(cached_url, entry)
    entry.prefix.close()
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are not modes there")
def test_entries_are_readable_by_their_owner_only(cached_url: str, folder: Path) -> None:
    (entry,) = folder.iterdir()
    assert entry.stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0


def test_unwritable_cache_folder_is_not_an_error(
    hub: Hub, reach: Reach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_bytes(b"")
    monkeypatch.setenv("EDGEKIT_CACHE", str(blocked))
    write_gguf(hub.root / "cdn/kept.gguf", HEADER, weights_bytes=0)
    assert read_and_cache(f"{hub.cdn}/kept.gguf", fresh(reach)) == HEADER[:1_000_000]


def test_concurrent_writers_and_readers_see_complete_entries_only(
    cached_url: str, folder: Path
) -> None:
    script = f"""
import os, sys
from edgekit.sources import cache
from edgekit.sources.cache import Version
for number in range(40):
    prefix = cache.new_prefix()
    prefix.write(bytes([number]) * 100_000)
    version = Version(total_bytes=200_000, etag=f'"{{os.getpid()}}-{{number}}"')
    entry = cache.CachedRange(version=version, linked_etag=None, prefix=prefix, length=100_000)
    cache.store({cached_url!r}, entry)
    prefix.close()
    seen = cache.load({cached_url!r})
    assert seen is not None
    seen.prefix.seek(0)
    assert len(set(seen.prefix.read())) == 1
    seen.prefix.close()
"""
    workers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [worker.wait(30) for worker in workers] == [0, 0]
    assert [path.suffix for path in folder.iterdir()] == [".header"]


def test_cached_header_is_served_offline_without_a_request(
    hub: Hub, cached_url: str, reach: Reach
) -> None:
    offline = replace(fresh(reach), network=False)
    file = HttpFile(Transport(offline), cached_url, name="the file")
    assert file.read(0, 1_000_000) == HEADER[:1_000_000]
    with pytest.raises(RemoteInspectError, match="the network is off"):
        file.read(0, 1_500_000)
    file.close()
    assert offline.traffic.requests == 0
    assert hub.log("cdn") == []


def test_entry_is_one_line_of_json_followed_by_the_bytes(cached_url: str, folder: Path) -> None:
    (entry,) = folder.iterdir()
    line, _, data = entry.read_bytes().partition(b"\n")
    metadata = json.loads(line)
    assert (metadata["url"], metadata["length"], metadata["total_bytes"]) == (
        cached_url,
        1_000_000,
        len(HEADER) + (1 << 20),
    )
    assert data == HEADER[:1_000_000]


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"EDGEKIT_CACHE": "/e"}, "/e/headers"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/edgekit/headers"),
        ("linux", {}, "/home/me/.cache/edgekit/headers"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "/home/me/Library/Caches/edgekit/headers"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/edgekit/headers"),
        ("win32", {}, "/home/me/AppData/Local/edgekit/headers"),
    ],
)
def test_cache_folder_of_each_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str
) -> None:
    for name in ("EDGEKIT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert cache.cache_folder() == Path(expected)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_fifo_in_place_of_an_entry_is_ignored(nginx: Hub, reach: Reach, folder: Path) -> None:
    url = f"{nginx.cdn}/acme/large-GGUF/large-Q4_K_M.gguf"
    read_and_cache(url, fresh(reach))
    (entry,) = folder.glob("*.header")
    entry.unlink()
    os.mkfifo(entry)
    assert cache.load(url) is None
