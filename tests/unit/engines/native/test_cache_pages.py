"""A KV cache that spills pages to disk: the same logits as one in memory, or an error that says why not."""

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
from edgekit.engines.native import cache as cache_module
from edgekit.engines.native.cache import DiskSpeed, PageFile, measure
from edgekit.engines.native.generator import StreamEngine, line_key
from edgekit.engines.native.kernels.types import Floats
from edgekit.errors import CancelledError, KvSpillUnsupportedError, SourceError
from edgekit.units import MIB

WINDOW, RESIDENT, SPILL_FROM = 1_300, 800, 512  # 6 pages, of which 3 stay in memory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: tiny(folder, name) for name in FAMILIES}


@pytest.fixture
def spill_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as a fast disk, whatever disk the tests run on and however busy it is."""
    monkeypatch.setattr(cache_module, "_refuse_folder_in_memory", lambda _folder: None)
    monkeypatch.setattr(cache_module, "measure", disk_with(1e12))
    folder = tmp_path / "pages"
    folder.mkdir()
    return folder


def spilling_session(path: Path, folder: Path, window: int = WINDOW, **more: Any) -> StreamEngine:
    setup = {"resident_tokens": RESIDENT, **more.pop("setup", {})}
    return session(
        path, window=window, setup=setup, spill_folder=folder, spill_from_tokens=SPILL_FROM, **more
    )


def feed_in_parts(engine: StreamEngine, tokens: list[int]) -> Floats:
    """Logits of the prompt (all tokens but the last five) and of the last five, fed one by one."""
    rows = [engine.feed(tokens[:-5]).copy()]
    rows += [engine.feed([token]).copy() for token in tokens[-5:]]
    return np.stack(rows)


FOUR_PAGES = 1_000  # window of 4 pages, one of which is spilled
ROLLED = FOUR_PAGES + 300  # overwrites the first page and begins to overwrite the second
CASES: dict[str, tuple[dict[str, Any], int]] = {  # setup, number of tokens
    "llama f16": ({}, FOUR_PAGES),
    "qwen2 q8_0": ({"rolling": True}, ROLLED),
    "qwen3 f32": ({"rolling": True, "sinks": 4}, ROLLED),
    "gemma3 q8_0": ({"rolling": True, "sinks": 3}, ROLLED + 77),
}


@costly
@pytest.mark.parametrize("case", CASES)
def test_spilled_cache_gives_the_same_logits(
    models: dict[str, Path], spill_folder: Path, case: str
) -> None:
    name, cache = case.split()
    setup, count = CASES[case]
    tokens = some_tokens(count)
    with session(models[name], window=FOUR_PAGES, cache=cache, setup=setup) as engine:
        in_memory = feed_in_parts(engine, tokens)
    with spilling_session(
        models[name], spill_folder, FOUR_PAGES, cache=cache, setup=setup
    ) as engine:
        spilled = feed_in_parts(engine, tokens)
        assert not list(spill_folder.iterdir())  # the spill file has no name
        billed = {line_key(line): line.size_bytes for line in engine.plan.lines}
        del billed["sampler"]
        assert allocated_by(engine) == billed
        last = allocated_by(engine)[f"cache, layer {len(engine.plan.cells) - 1}"]
        assert last == 3 * 256 * engine.plan.cell_bytes  # 800 resident tokens: three full pages
        assert allocated_by(engine)["page read back"] == 256 * engine.plan.cell_bytes
    np.testing.assert_allclose(spilled, in_memory, atol=1e-3)


def test_reset_discards_spilled_pages(models: dict[str, Path], spill_folder: Path) -> None:
    tokens = some_tokens(1_000)
    with spilling_session(models["llama"], spill_folder) as engine:
        first = engine.feed(tokens).copy()
        engine.reset()
        engine.feed(some_tokens(1_200, seed=1))
        engine.reset()
        np.testing.assert_allclose(engine.feed(tokens), first, atol=1e-5)


def test_cache_spills_beyond_65536_tokens_by_default(
    models: dict[str, Path], spill_folder: Path
) -> None:
    """1,024 of 70,000 tokens are in memory: 3 layers x 1,280 cells including the page that is read back."""
    with session(
        models["llama"],
        window=70_000,
        cache="q8_0",
        setup={"resident_tokens": 1_024},
        spill_folder=spill_folder,
    ) as engine:
        assert engine.cache_bytes == (3 * 1_024 + 256) * 2 * 2 * 34
        assert np.isfinite(engine.feed(some_tokens(1_100))).all()


def test_model_with_only_sliding_layers_spills_nothing(tmp_path: Path, spill_folder: Path) -> None:
    path = tiny(tmp_path, "gemma3", window_period=0)
    with spilling_session(path, spill_folder) as engine:
        assert engine.plan.resident_pages is None
        assert allocated_by(engine)["cache, layer 2"] == 8 * engine.plan.cell_bytes


# --- when spilling is refused


def disk_with(read: float, write: float = 1e12) -> Callable[[Path], DiskSpeed]:
    return lambda _folder: DiskSpeed(write_bytes_per_s=write, read_bytes_per_s=read)


@pytest.mark.parametrize(
    ("purpose", "enough", "too_slow"),
    [(Purpose.TEXT, 787_000, 786_000), (Purpose.VOICE, 5_899_000, 5_898_000)],
)
def test_spilling_refuses_a_disk_that_reads_too_slowly(
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    purpose: Purpose,
    enough: int,
    too_slow: int,
) -> None:
    """3 layers x 3 cold pages x 256 tokens x 512 bytes = 1,179,648 bytes within 1.5 s or 0.2 s."""
    folder = models["llama"].parent
    monkeypatch.setattr(cache_module, "_refuse_folder_in_memory", lambda _folder: None)
    monkeypatch.setattr(cache_module, "measure", disk_with(enough))
    spilling_session(models["llama"], folder, purpose=purpose).close()
    monkeypatch.setattr(cache_module, "measure", disk_with(too_slow))
    with pytest.raises(KvSpillUnsupportedError, match=r"1\.12 MiB back .* MB/s.* the limit for"):
        spilling_session(models["llama"], folder, purpose=purpose)


def test_spilling_refuses_a_disk_that_writes_too_slowly(
    models: dict[str, Path], spill_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "measure", disk_with(1e12, write=100_000))
    with pytest.raises(KvSpillUnsupportedError, match=r"writes up to 384\.00 KiB in 3,932 ms"):
        spilling_session(models["llama"], spill_folder)


def test_spilling_refuses_a_window_that_fits_in_memory(
    models: dict[str, Path], spill_folder: Path
) -> None:
    with pytest.raises(KvSpillUnsupportedError, match="only windows of more than 512"):
        spilling_session(models["llama"], spill_folder, window=512, setup={"resident_tokens": 256})


def test_spilling_refuses_a_disk_with_too_little_space(
    models: dict[str, Path], spill_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_free_bytes", lambda _folder: MIB)
    with pytest.raises(
        KvSpillUnsupportedError, match=r"spilled pages do not fit in the 1\.00 MiB left"
    ):
        spilling_session(models["llama"], spill_folder)


def test_spilling_refuses_a_missing_folder(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(
        KvSpillUnsupportedError, match=r"cannot spill the KV cache to .*No such file"
    ):
        spilling_session(models["llama"], tmp_path / "nowhere")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no tmpfs here")
def test_spilling_refuses_a_folder_in_memory(models: dict[str, Path]) -> None:
    with pytest.raises(KvSpillUnsupportedError, match=r"is in RAM \(tmpfs\)"):
        spilling_session(models["llama"], Path("/dev/shm"))


def test_measure_leaves_no_file_behind(tmp_path: Path) -> None:
    result = measure(tmp_path)
    assert result.read_bytes_per_s > MIB
    assert result.write_bytes_per_s > MIB
    assert not list(tmp_path.iterdir())


# --- a disk that fails during a session


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes")
def test_session_continues_after_the_spill_file_could_not_grow(
    models: dict[str, Path], spill_folder: Path
) -> None:
    """The tokens fed so far stay in memory; once there is disk space again, the session continues."""
    import resource

    tokens = some_tokens(900)
    with spilling_session(models["llama"], spill_folder) as engine:
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
def test_page_file_on_a_full_disk(tmp_path: Path) -> None:
    file = PageFile(tmp_path)
    file.close()
    with (
        Path("/dev/full").open("r+b", buffering=0) as file._file,
        pytest.raises(KvSpillUnsupportedError, match=r"No space left on device; free some"),
    ):
        file.write(0, np.zeros(10, np.uint8))


def test_page_file_refuses_a_page_that_is_cut_short(tmp_path: Path) -> None:
    file = PageFile(tmp_path)
    file.write(0, np.ones(10, np.uint8))
    into = np.zeros(20, np.uint8)
    with pytest.raises(SourceError, match="ends 10 bytes before byte 20"):
        file.read(0, into)
    file.close()


def test_spill_folder_may_be_removed_while_in_use(
    models: dict[str, Path], spill_folder: Path
) -> None:
    """The spill file has no name, so it does not need the folder."""
    tokens = some_tokens(900)
    with spilling_session(models["llama"], spill_folder) as engine:
        expected = engine.feed(tokens).copy()
        engine.reset()
        spill_folder.rmdir()
        assert np.array_equal(engine.feed(tokens), expected)


def test_cancelled_session_leaves_no_thread_or_file_open(
    models: dict[str, Path], spill_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, descriptors = running(), _descriptors()
    read_ahead_calls: list[PageFile] = []
    monkeypatch.setattr(
        cache_module.PageFile, "read_ahead", lambda self, *_: read_ahead_calls.append(self)
    )

    def stop(_share: float) -> None:
        if read_ahead_calls:
            raise CancelledError("while cold pages are read back")

    with pytest.raises(CancelledError), spilling_session(models["llama"], spill_folder) as engine:
        engine.feed(some_tokens(1_200), stop)
    assert (started_since(threads), _descriptors()) == (0, descriptors)


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
