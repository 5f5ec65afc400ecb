"""The form of a tokenizer that stays on the disk: used again, never believed when broken."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.vocabularies import write_model

from edgekit.engines.native.file import Limits, WeightFile, scan_header
from edgekit.engines.native.tokenizer import build as kept
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


def test_written_once_and_used_again(vocabulary: Vocabulary, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    plain = build_tokenizer(vocabulary).encode(TEXT)
    assert not cache.exists()
    assert build_tokenizer(vocabulary, cache=cache).encode(TEXT) == plain
    first = files_in(cache)
    assert sorted(first) == sorted((kept.VOCABULARY_FILE, kept.MERGES_FILE, kept.DIGESTS_FILE))
    assert build_tokenizer(vocabulary, cache=cache).encode(TEXT) == plain
    assert files_in(cache) == first


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def scramble(path: Path) -> None:
    """Well-formed still: other merges, other numbers."""
    raw = path.read_bytes()
    path.write_bytes(
        raw.replace(b"a b\nb c", b"b c\na b").replace(b":1,", b":9,").replace(b"0", b"1")
    )


def remove(path: Path) -> None:
    path.unlink()


def nest(path: Path) -> None:
    path.write_bytes(b"[" * 100_000)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", [kept.VOCABULARY_FILE, kept.MERGES_FILE, kept.DIGESTS_FILE])
@pytest.mark.parametrize("harm", [cut_off, scramble, remove, nest, pipe])
def test_broken_files_are_written_anew(
    name: str, harm: Callable[[Path], None], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    plain = build_tokenizer(vocabulary, cache=cache).encode(TEXT)
    whole = {name: content for name, (_, content) in files_in(cache).items()}
    (file,) = cache.rglob(name)
    harm(file)
    assert build_tokenizer(vocabulary, cache=cache).encode(TEXT) == plain
    assert {name: content for name, (_, content) in files_in(cache).items()} == whole


def test_another_vocabulary_has_another_place(vocabulary: Vocabulary, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build_tokenizer(vocabulary, cache=cache)
    path = tmp_path / "other.gguf"
    write_model(path, {**KEYS, "tokenizer.ggml.merges": ["b c", "a b", "ab c"]})
    with WeightFile(path, Limits()) as file:
        build_tokenizer(read_vocabulary(file, scan_header(file)), cache=cache)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_done_without(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert build_tokenizer(vocabulary, cache=locked / "cache").encode(TEXT)


def test_a_file_in_the_place_of_the_folder_is_done_without(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    assert build_tokenizer(vocabulary, cache=tmp_path / "cache").encode(TEXT)


def test_build_tokenizer_without_a_temporary_folder(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match="TMPDIR"):
        build_tokenizer(vocabulary)


def test_several_at_once(vocabulary: Vocabulary, tmp_path: Path) -> None:
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
