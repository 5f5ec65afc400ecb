"""A cache of which some pages lie on the disk: the same results, or an error that says why not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream_sessions import FAMILIES, allocated_by, session, some_tokens, tiny
from tests.thoroughness import costly
from tests.threads import running, started_since

from edgekit.bill.spill import Purpose
from edgekit.engines.native import cache as gate
from edgekit.engines.native import cache as pages
from edgekit.engines.native.cache import DiskSpeed, PageFile, measure
from edgekit.engines.native.generator import StreamEngine, line_key
from edgekit.engines.native.kernels.types import Floats
from edgekit.errors import CancelledError, KvSpillUnsupportedError, SourceError
from edgekit.units import MIB

WINDOW, RESIDENT, FROM = 1_300, 800, 512  # 6 pages, of which 3 stay in memory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: tiny(folder, name) for name in FAMILIES}


@pytest.fixture
def spill_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as a fast disk, whatever the tests are on and however busy it is."""
    monkeypatch.setattr(gate, "_refuse_folder_in_memory", lambda _folder: None)
    monkeypatch.setattr(gate, "measure", disk_of(1e12))
    folder = tmp_path / "pages"
    folder.mkdir()
    return folder


def spilling(path: Path, folder: Path, window: int = WINDOW, **more: Any) -> StreamEngine:
    setup = {"resident_tokens": RESIDENT, **more.pop("setup", {})}
    return session(
        path, window=window, setup=setup, spill_folder=folder, spill_from_tokens=FROM, **more
    )


def read(engine: StreamEngine, tokens: list[int]) -> Floats:
    """Most of them as prompts, the last one by one."""
    rows = [engine.feed(tokens[:-5]).copy()]
    rows += [engine.feed([token]).copy() for token in tokens[-5:]]
    return np.stack(rows)


FOUR = 1_000  # a window of 4 pages, of which one is spilled
ROLLED = FOUR + 300  # the first page is written anew, and the second one begun
CASES: dict[str, tuple[dict[str, Any], int]] = {  # a setup, and how many tokens
    "llama f16": ({}, FOUR),
    "qwen2 q8_0": ({"rolling": True}, ROLLED),
    "qwen3 f32": ({"rolling": True, "sinks": 4}, ROLLED),
    "gemma3 q8_0": ({"rolling": True, "sinks": 3}, ROLLED + 77),
}


@costly
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same_with_and_without(
    models: dict[str, Path], spill_folder: Path, case: str
) -> None:
    name, cache = case.split()
    setup, count = CASES[case]
    tokens = some_tokens(count)
    with session(models[name], window=FOUR, cache=cache, setup=setup) as engine:
        whole = read(engine, tokens)
    with spilling(models[name], spill_folder, FOUR, cache=cache, setup=setup) as engine:
        spilled = read(engine, tokens)
        assert not list(spill_folder.iterdir())  # it has no name
        billed = {line_key(line): line.size_bytes for line in engine.plan.lines}
        del billed["sampler"]
        assert allocated_by(engine) == billed
        last = allocated_by(engine)[f"cache, layer {len(engine.plan.cells) - 1}"]
        assert last == 3 * 256 * engine.plan.cell_bytes  # 800 tokens are three whole pages
        assert allocated_by(engine)["page read back"] == 256 * engine.plan.cell_bytes
    np.testing.assert_allclose(spilled, whole, atol=1e-3)


def test_after_a_reset_old_pages_are_not_read(models: dict[str, Path], spill_folder: Path) -> None:
    tokens = some_tokens(1_000)
    with spilling(models["llama"], spill_folder) as engine:
        first = engine.feed(tokens).copy()
        engine.reset()
        engine.feed(some_tokens(1_200, seed=1))
        engine.reset()
        np.testing.assert_allclose(engine.feed(tokens), first, atol=1e-5)


def test_cache_pages_past_64k_by_default(models: dict[str, Path], spill_folder: Path) -> None:
    """Of 70,000 tokens 1,024 are in memory: 3 layers x 1,280 cells with the page that is read back."""
    with session(
        models["llama"],
        window=70_000,
        cache="q8_0",
        setup={"resident_tokens": 1_024},
        spill_folder=spill_folder,
    ) as engine:
        assert engine.cache_bytes == (3 * 1_024 + 256) * 2 * 2 * 34
        assert np.isfinite(engine.feed(some_tokens(1_100))).all()


def test_layers_with_windows_only_have_nothing_to_spill(tmp_path: Path, spill_folder: Path) -> None:
    path = tiny(tmp_path, "gemma3", window_period=0)
    with spilling(path, spill_folder) as engine:
        assert engine.plan.resident_pages is None
        assert allocated_by(engine)["cache, layer 2"] == 8 * engine.plan.cell_bytes


# --- the gate


def disk_of(read: float, write: float = 1e12) -> Callable[[Path], DiskSpeed]:
    return lambda _folder: DiskSpeed(write_bytes_per_s=write, read_bytes_per_s=read)


@pytest.mark.parametrize(
    ("purpose", "enough", "too_slow"),
    [(Purpose.TEXT, 787_000, 786_000), (Purpose.VOICE, 5_899_000, 5_898_000)],
)
def test_all_that_a_step_reads_back_must_be_there_in_time(
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    purpose: Purpose,
    enough: int,
    too_slow: int,
) -> None:
    """3 layers x 3 cold pages x 256 tokens x 512 bytes = 1,179,648 bytes within 1.5 s or 0.2 s."""
    folder = models["llama"].parent
    monkeypatch.setattr(gate, "_refuse_folder_in_memory", lambda _folder: None)
    monkeypatch.setattr(gate, "measure", disk_of(enough))
    spilling(models["llama"], folder, purpose=purpose).close()
    monkeypatch.setattr(gate, "measure", disk_of(too_slow))
    with pytest.raises(KvSpillUnsupportedError, match=r"1\.12 MiB back .* MB/s.* the limit for"):
        spilling(models["llama"], folder, purpose=purpose)


def test_pages_that_are_written_count_too(
    models: dict[str, Path], spill_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "measure", disk_of(1e12, write=100_000))
    with pytest.raises(KvSpillUnsupportedError, match=r"writes up to 384\.00 KiB in 3,932 ms"):
        spilling(models["llama"], spill_folder)


def test_a_window_that_stays_whole(models: dict[str, Path], spill_folder: Path) -> None:
    with pytest.raises(KvSpillUnsupportedError, match="only windows of more than 512"):
        spilling(models["llama"], spill_folder, window=512, setup={"resident_tokens": 256})


def test_a_disk_without_room(
    models: dict[str, Path], spill_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_free_bytes", lambda _folder: MIB)
    with pytest.raises(
        KvSpillUnsupportedError, match=r"spilled pages do not fit in the 1\.00 MiB left"
    ):
        spilling(models["llama"], spill_folder)


def test_cache_folder_that_does_not_exist(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(
        KvSpillUnsupportedError, match=r"cannot spill the KV cache to .*No such file"
    ):
        spilling(models["llama"], tmp_path / "nowhere")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no folder that lies in memory")
def test_a_folder_that_lies_in_memory(models: dict[str, Path]) -> None:
    with pytest.raises(KvSpillUnsupportedError, match=r"is in RAM \(tmpfs\)"):
        spilling(models["llama"], Path("/dev/shm"))


def test_a_disk_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    result = measure(tmp_path)
    assert result.read_bytes_per_s > MIB
    assert result.write_bytes_per_s > MIB
    assert not list(tmp_path.iterdir())


# --- a disk that fails while it runs


@pytest.mark.skipif(sys.platform == "win32", reason="no limit for the size of a file")
def test_cache_file_that_cannot_grow_loses_nothing(
    models: dict[str, Path], spill_folder: Path
) -> None:
    """What was read stays in memory; when there is room again, the session goes on."""
    import resource

    tokens = some_tokens(900)
    with spilling(models["llama"], spill_folder) as engine:
        expected = engine.feed(tokens).copy()
        engine.reset()
        engine.feed(tokens[:512])
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(KvSpillUnsupportedError, match=r"cannot be written in .*too large"):
                engine.feed(tokens[512:])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert engine.position == 768  # three pages are in memory
        np.testing.assert_allclose(engine.feed(tokens[768:]), expected, atol=1e-5)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_cache_file_on_a_full_disk(tmp_path: Path) -> None:
    file = PageFile(tmp_path)
    file.close()
    with (
        Path("/dev/full").open("r+b", buffering=0) as file._file,
        pytest.raises(KvSpillUnsupportedError, match=r"No space left on device; free some"),
    ):
        file.write(0, np.zeros(10, np.uint8))


def test_a_page_that_does_not_come_back_whole(tmp_path: Path) -> None:
    file = PageFile(tmp_path)
    file.write(0, np.ones(10, np.uint8))
    into = np.zeros(20, np.uint8)
    with pytest.raises(SourceError, match="ends 10 bytes before byte 20"):
        file.read(0, into)
    file.close()


def test_cache_folder_removed_while_in_use(models: dict[str, Path], spill_folder: Path) -> None:
    """The file has no name, so it needs no folder."""
    tokens = some_tokens(900)
    with spilling(models["llama"], spill_folder) as engine:
        expected = engine.feed(tokens).copy()
        engine.reset()
        spill_folder.rmdir()
        assert np.array_equal(engine.feed(tokens), expected)


def test_nothing_is_left_behind(
    models: dict[str, Path], spill_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, descriptors = running(), _descriptors()
    made: list[PageFile] = []
    monkeypatch.setattr(pages.PageFile, "read_ahead", lambda self, *_: made.append(self))

    def stop(_share: float) -> None:
        if made:
            raise CancelledError("in the middle of cold pages")

    with pytest.raises(CancelledError), spilling(models["llama"], spill_folder) as engine:
        engine.feed(some_tokens(1_200), stop)
    assert (started_since(threads), _descriptors()) == (0, descriptors)


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
