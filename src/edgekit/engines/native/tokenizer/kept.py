"""The two files of a BPE: where they are kept, written so that they are whole or not there.

A folder of the caller's holds one folder for each vocabulary, named after what is in it. The third
file, written last, has the digests of the other two: what does not agree with it is written anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from edgekit.engines.native.tokenizer.types import Vocabulary
from edgekit.errors import EdgekitError
from edgekit.sources.local import open_file, read_small

VOCABULARY, MERGES, DIGESTS = "vocab.json", "merges.txt", "digests.json"
Parts = Callable[[], Iterable[str]]
_FORM = (
    b"edgekit tokenizer 1"  # a new form of the files, or another way to make merges: a new number
)
_CHUNK_BYTES = 1 << 16
_DIGESTS_BYTES = 1024  # two names and two digests have some 120


def folder_of(vocabulary: Vocabulary, cache: Path | None) -> Path | None:
    """Named after the tokens and all that the two files are made of."""
    if cache is None:
        return None
    import hashlib  # only where there is a cache: 3 MiB with OpenSSL

    digest = hashlib.blake2b(_FORM, digest_size=16)
    for part in (vocabulary.tokens, vocabulary.merges):
        if part is not None:
            digest.update(f"{len(part)} {len(part.all_bytes)}".encode())
            digest.update(part.ends)
            digest.update(part.all_bytes)
    if vocabulary.scores is not None:
        digest.update(vocabulary.scores)
    return cache / digest.hexdigest()


def is_whole(folder: Path) -> bool:
    """Whether both files are there and as they were written."""
    try:
        stated = json.loads(read_small(folder / DIGESTS, limit=_DIGESTS_BYTES) or b"")
        return bool(stated == {name: _digest(folder / name) for name in (VOCABULARY, MERGES)})
    except (OSError, EdgekitError, ValueError, RecursionError):
        return False


def write(folder: Path, temporary: Path, vocabulary: Parts, merges: Parts) -> Path:
    """Writes both files; where they are. That is `temporary` if the folder cannot be written."""
    if folder != temporary:
        with contextlib.suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
            try:
                _write_into(beside, vocabulary, merges)
                _put(beside, folder)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
            return folder
    return _write_into(temporary, vocabulary, merges)


def _write_into(folder: Path, vocabulary: Parts, merges: Parts) -> Path:
    for name, parts in ((VOCABULARY, vocabulary), (MERGES, merges)):
        with (folder / name).open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(parts())
    digests = {name: _digest(folder / name) for name in (VOCABULARY, MERGES)}
    (folder / DIGESTS).write_text(json.dumps(digests), encoding="utf-8")
    return folder


def _put(beside: Path, folder: Path) -> None:
    """One after another, the digests last: a reader in between finds them not to agree."""
    folder.mkdir(exist_ok=True)
    for name in (VOCABULARY, MERGES, DIGESTS):
        os.replace(beside / name, folder / name)  # noqa: PTH105 - the one that is atomic everywhere


def _digest(path: Path) -> str:
    import hashlib

    digest = hashlib.blake2b(digest_size=16)
    with open_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
