"""The hub is off or down: the cached listing is used, and a note says so."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.hub.nginx_hub import TOKEN, Hub, start

from edgekit.cli import main
from edgekit.errors import (
    NotFoundError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
)
from edgekit.formats import read_header
from edgekit.formats.types import Depth, ModelHeader
from edgekit.sources import cache
from edgekit.sources.cache import Version
from edgekit.sources.hub import cached_listing, store_listing
from edgekit.sources.locator import locate
from edgekit.sources.types import Reach, Traffic

CACHED_ON = 1_752_000_000  # in July 2025 in every time zone
DAY = time.strftime("%Y-%m-%d", time.localtime(CACHED_ON))
NOTE = f"using the answer cached on {DAY}, which may be out of date"


@pytest.fixture
def online(reach: Reach) -> Reach:
    return replace(reach, cache=True)


@pytest.fixture(autouse=True)
def cached_in_july(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that these tests cache is dated CACHED_ON."""
    original = cache.CachedRange

    def cached_range(**values: object) -> cache.CachedRange:
        return original(**{"cached_at": CACHED_ON, **values})  # type: ignore[arg-type]

    monkeypatch.setattr(cache, "CachedRange", cached_range)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "headers"


def fresh(reach: Reach, *, network: bool = True) -> Reach:
    return replace(reach, network=network, traffic=Traffic())


def header_of(reference: str, reach: Reach, depth: Depth = Depth.TENSORS) -> ModelHeader:
    return read_header(locate(reference, reach=reach), depth=depth)


@dataclass(frozen=True, slots=True)
class StoppableHub:
    hub: Hub
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Refuses connections from now on."""
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def stoppable_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoppableHub]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed (Debian: apt install nginx-light)")
    running = StoppableHub(*start(tmp_path / "nginx"))
    monkeypatch.setenv("HF_ENDPOINT", running.hub.endpoint)
    yield running
    running.stop()


REFERENCES = [
    "acme/large-GGUF",
    "acme/tiny-GGUF:Q8_0",
    "acme/tiny-GGUF/tiny-Q8_0.gguf",
    "acme/pair-GGUF",
    "acme/pair-GGUF/pair-Q4_K_M-00002-of-00002.gguf",
    "acme/llama",
    "acme/llama-mlx",
]


@pytest.mark.parametrize("reference", REFERENCES)
def test_cached_listing_is_used_offline(hub: Hub, online: Reach, reference: str) -> None:
    before = header_of(reference, fresh(online))
    hub.clear_logs()
    offline = fresh(online, network=False)
    files = locate(reference, reach=offline)
    assert files.notes == (f"offline: {NOTE}",)
    after = read_header(files)
    assert (after.keys, after.tensors) == (before.keys, before.tensors)
    assert (offline.traffic.requests, hub.log("hub"), hub.log("cdn")) == (0, [], [])


@pytest.mark.parametrize("reference", REFERENCES)
def test_cached_listing_is_used_when_the_hub_is_down(
    stoppable_hub: StoppableHub, online: Reach, reference: str
) -> None:
    before = header_of(reference, fresh(online))
    stoppable_hub.stop()
    files = locate(reference, reach=fresh(online))
    (note,) = files.notes
    host = stoppable_hub.hub.endpoint[7:]
    assert re.fullmatch(rf"could not reach Hugging Face \(.*cannot reach {host} .*\): {NOTE}", note)
    assert read_header(files).tensors == before.tensors


def test_file_is_chosen_again_from_the_cached_listing(
    hub: Hub, online: Reach, folder: Path
) -> None:
    header_of("acme/tiny-GGUF", fresh(online))
    with pytest.raises(
        NotFoundError, match=r"acme/tiny-GGUF has no Q2_K\. Did you mean: Q4_K_M, Q8_0"
    ):
        locate("acme/tiny-GGUF:Q2_K", reach=fresh(online, network=False))
    assert locate("acme/tiny-GGUF", reach=fresh(online, network=False)).alternatives == ("Q8_0",)


def test_header_that_was_never_read_is_an_error_offline(
    stoppable_hub: StoppableHub, online: Reach
) -> None:
    """Only the architecture was read: the tensor directory is not in the cache."""
    header_of("acme/large-GGUF", fresh(online), Depth.ARCHITECTURE)
    offline = fresh(online, network=False)
    assert header_of("acme/large-GGUF", offline, Depth.ARCHITECTURE).keys["llama.block_count"] == 2
    with pytest.raises(
        RemoteInspectError,
        match=r"^acme/large-GGUF is not in the Hugging Face cache .*: turn it on",
    ):
        header_of("acme/large-GGUF", fresh(online, network=False))
    with pytest.raises(
        RemoteInspectError, match=r"^acme/tiny-GGUF is not in the Hugging Face cache"
    ):
        header_of("acme/tiny-GGUF", fresh(online, network=False))
    stoppable_hub.stop()
    with pytest.raises(
        RemoteInspectError, match=r"cannot reach .* .4 attempts.; check the network"
    ):
        header_of("acme/large-GGUF", fresh(online))


def test_quantisation_that_was_never_read_is_an_error_offline(hub: Hub, online: Reach) -> None:
    header_of("acme/tiny-GGUF:Q8_0", fresh(online))
    with pytest.raises(
        RemoteInspectError, match=r"^acme/tiny-GGUF is not in the Hugging Face cache"
    ):
        header_of("acme/tiny-GGUF:Q4_K_M", fresh(online, network=False))


def test_disabled_cache_neither_stores_nor_uses_a_listing(
    hub: Hub, online: Reach, folder: Path
) -> None:
    header_of("acme/llama", replace(fresh(online), cache=False))
    assert not folder.exists()
    header_of("acme/llama", fresh(online))
    with pytest.raises(RemoteInspectError, match="is not in the Hugging Face cache"):
        locate("acme/llama", reach=replace(fresh(online, network=False), cache=False))


def test_hub_cache_is_preferred_to_the_cached_listing(
    hub: Hub, online: Reach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header_of("acme/tiny-GGUF:Q8_0", fresh(online))
    header_of("acme/tiny-GGUF:Q4_K_M", fresh(online))
    snapshot = tmp_path / "models--acme--tiny-GGUF/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "tiny-Q4_K_M.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    offline = fresh(online, network=False)
    assert locate("acme/tiny-GGUF", reach=offline).notes == ()
    # the snapshot has no Q8_0, so the cached listing is used
    assert locate("acme/tiny-GGUF:Q8_0", reach=offline).notes == (f"offline: {NOTE}",)


@pytest.mark.parametrize("reference", ["acme/gated-GGUF", "acme/gated-GGUF/gated-Q4_K_M.gguf"])
def test_refusal_by_the_hub_is_not_overridden_by_the_cache(
    hub: Hub, online: Reach, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    """The header is cached, but it is not shown to a user without access while the hub can be reached."""
    with monkeypatch.context() as with_token:
        with_token.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
        with_token.setenv("HF_TOKEN", TOKEN)
        header_of(reference, fresh(online))
    with pytest.raises(RemoteAccessError):
        header_of(reference, fresh(online))


def test_deleted_repository_is_not_answered_from_the_cache(hub: Hub, online: Reach) -> None:
    page = hub.root / "hub/api/models/acme/llama-mlx/tree/main/page.json"
    raw = page.read_bytes()
    header_of("acme/llama-mlx", fresh(online))
    page.unlink()
    try:
        with pytest.raises(RemoteNotFoundError):
            locate("acme/llama-mlx", reach=fresh(online))
    finally:
        page.write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: b"",
        lambda raw: raw.replace(b'"kept_at": ', b'"kept_at": -', 1),
        lambda raw: raw.replace(b'"kept_at": ', b'"kept_at": 9', 1).replace(
            b"9175", b"99999999175"
        ),
        lambda raw: re.sub(rb'"kept_at": \d+, ', b"", raw, count=1),
    ],
)
def test_damaged_cached_listing_is_removed(
    hub: Hub, online: Reach, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    header_of("acme/tiny-GGUF", fresh(online))
    (entry,) = (path for path in folder.iterdir() if b"/api/models/" in path.read_bytes()[:200])
    damaged = damage(entry.read_bytes())
    assert damaged != entry.read_bytes()
    entry.write_bytes(damaged)
    with pytest.raises(RemoteInspectError, match="is not in the Hugging Face cache"):
        locate("acme/tiny-GGUF", reach=fresh(online, network=False))
    assert not entry.exists()


URL = "https://hub.example/api/models/a/b/tree/main"


@pytest.mark.parametrize(
    "items",
    [
        {},
        [],
        "x",
        [1, None],
        [{"type": "file", "path": "../../etc/passwd", "size": 1}],
        [{"type": "file", "path": "a\x1b[31m.gguf", "size": 1}],
    ],
)
def test_cached_listing_is_validated_like_the_hubs(items: object) -> None:
    body = json.dumps(items).encode()
    entry = cache.CachedRange(
        version=Version(total_bytes=len(body)),
        linked_etag=None,
        prefix=io.BytesIO(body),
        length=len(body),
    )
    cache.store(URL, entry)
    assert cached_listing(URL) is None


def test_cached_listing_is_read_back_unchanged() -> None:
    entries = (("a.gguf", 5), ("b/c.safetensors", None), ("ü.json", 0))
    store_listing(URL, entries)
    assert cached_listing(URL) == (entries, CACHED_ON)


def test_listing_of_an_endpoint_with_a_password_is_not_cached(folder: Path) -> None:
    store_listing(URL.replace("//", "//me:pw@"), [("a.gguf", 5)])
    assert not folder.exists()


def test_listing_beyond_the_size_limit_is_not_cached(folder: Path) -> None:
    store_listing(URL, [("x" * 900 + str(number), 1) for number in range(5000)])
    assert not folder.exists()


def test_listings_are_pruned_with_the_headers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 1000)
    for number in range(5):
        store_listing(f"{URL}{number}", [("a.gguf", 5)])
        for age, path in enumerate(sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime_ns)):
            os.utime(path, (1000 + age, 1000 + age))
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 1000
    assert cached_listing(f"{URL}4") is not None
    assert cached_listing(f"{URL}0") is None


def test_inspect_command_uses_the_cached_listing(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "acme/llama", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["inspect", "acme/llama", "--json", "--offline"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["tensor_bytes"] == first["tensor_bytes"]
    assert NOTE in json.dumps(again)
    assert main(["inspect", "acme/llama", "--offline", "--no-cache"]) == 4
