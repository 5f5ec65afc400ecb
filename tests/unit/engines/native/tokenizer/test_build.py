"""build_tokenizer with a cache folder: files are written once, reused, and replaced if damaged."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.vocabularies import write_model

from edgekit.engines.native.file import Limits, WeightFile, scan_header
from edgekit.engines.native.tokenizer import build as build_module
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.vocabulary import Vocabulary, read_vocabulary
from edgekit.errors import SourceError

TEXT = "abcabcbab"
KEYS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "c", "ab", "bc", "abc", "x" * 100],
    "tokenizer.ggml.merges": ["a b", "b c", "ab c"],
}


@pytest.fixture
def vocabulary(tmp_path: Path) -> Vocabulary:
    path = tmp_path / "model.gguf"
    write_model(path, KEYS)
    with WeightFile(path, Limits()) as file:
        return read_vocabulary(file, scan_header(file))


def files_in(cache: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.name: (path.stat().st_mtime_ns, path.read_bytes())
        for path in cache.rglob("*")
        if path.is_file()
    }


def test_tokenizer_cache_is_written_once(vocabulary: Vocabulary, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    plain = build_tokenizer(vocabulary).encode(TEXT)
    assert not cache.exists()
    assert build_tokenizer(vocabulary, cache=cache).encode(TEXT) == plain
    first = files_in(cache)
    assert sorted(first) == sorted(
        (build_module.VOCABULARY_FILE, build_module.MERGES_FILE, build_module.DIGESTS_FILE)
    )
    assert build_tokenizer(vocabulary, cache=cache).encode(TEXT) == plain
    assert files_in(cache) == first


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def scramble(path: Path) -> None:
    """Still well-formed, but with other merges or other numbers."""
    raw = path.read_bytes()
    path.write_bytes(
        raw.replace(b"a b\nb c", b"b c\na b").replace(b":1,", b":9,").replace(b"0", b"1")
    )


def remove(path: Path) -> None:
    path.unlink()


def nest_deeply(path: Path) -> None:
    path.write_bytes(b"[" * 100_000)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "name", [build_module.VOCABULARY_FILE, build_module.MERGES_FILE, build_module.DIGESTS_FILE]
)
@pytest.mark.parametrize("damage", [truncate, scramble, remove, nest_deeply, replace_by_pipe])
def test_tokenizer_cache_replaces_damaged_files(
    name: str, damage: Callable[[Path], None], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    plain = build_tokenizer(vocabulary, cache=cache).encode(TEXT)
    intact = {name: content for name, (_, content) in files_in(cache).items()}
    (file,) = cache.rglob(name)
    damage(file)
    assert build_tokenizer(vocabulary, cache=cache).encode(TEXT) == plain
    assert {name: content for name, (_, content) in files_in(cache).items()} == intact


def test_tokenizer_cache_has_one_folder_per_vocabulary(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    build_tokenizer(vocabulary, cache=cache)
    path = tmp_path / "other.gguf"
    write_model(path, {**KEYS, "tokenizer.ggml.merges": ["b c", "a b", "ab c"]})
    with WeightFile(path, Limits()) as file:
        build_tokenizer(read_vocabulary(file, scan_header(file)), cache=cache)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_build_tokenizer_without_a_writable_cache_folder(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert build_tokenizer(vocabulary, cache=locked / "cache").encode(TEXT)


def test_build_tokenizer_with_a_file_in_place_of_the_cache_folder(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    assert build_tokenizer(vocabulary, cache=tmp_path / "cache").encode(TEXT)


def test_build_tokenizer_without_a_temporary_folder_is_an_error(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match="TMPDIR"):
        build_tokenizer(vocabulary)


def test_build_tokenizer_in_several_threads(vocabulary: Vocabulary, tmp_path: Path) -> None:
    plain = build_tokenizer(vocabulary).encode(TEXT)
    result: list[list[int]] = []
    threads = [
        threading.Thread(
            target=lambda: result.append(
                build_tokenizer(vocabulary, cache=tmp_path / "cache").encode(TEXT)
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == [plain] * 4
    assert not list((tmp_path / "cache").glob(".new-*"))
