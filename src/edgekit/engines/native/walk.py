"""The header of a GGUF file -> what an embedder needs of it, through one window of 32 KiB.

The parser is formats/'s own. What differs is what is kept: a few keys, the places of the vocabulary's
arrays, and the tensors that somebody asked for; in all less than 100 KiB when that is one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from sys import getsizeof

from edgekit.engines.native.file import WeightFile
from edgekit.errors import HeaderError, HeaderLimitError
from edgekit.formats.cursor import Cursor
from edgekit.formats.gguf import KeyStore, alignment_of, read_directory, read_keys, read_start
from edgekit.formats.types import ArrayFact as ArrayPlace
from edgekit.formats.types import Tensor, Value
from edgekit.terminal import quoted
from edgekit.units import KIB

__all__ = ["ArrayPlace", "Tensor", "Walked", "walk"]

WINDOW_BYTES = 32 * KIB
# All that is kept of the keys, names included. Real files have 20 to 60 keys of 30 letters, about
# 12 KiB; four arrays of one number for each of 126 layers are another 20 KiB.
KEPT_BYTES = 48 * KIB
KEPT_STRING_BYTES = 2 * KIB  # a name has 40; what is longer (templates, licences) is not for us
KEPT_NUMBERS = 512  # one for each layer: 126 in the deepest model
KEPT_TENSORS = 4_096  # 126 layers of 16 are 2,016
NAMES_SEEN = 8  # of tensors, for a message that says what the file has instead
_SLOT_BYTES = 136  # a place in a dict, and a number
_GENERAL = frozenset(
    f"general.{name}"
    for name in (
        "architecture",
        "alignment",
        "basename",
        "file_type",
        "name",
        "quantization_version",
        "size_label",
        "type",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """What an embedder needs of a header. The file's arrays are places, to be read when needed."""

    name: str
    keys: Mapping[str, Value]
    arrays: Mapping[str, ArrayPlace]  # of the vocabulary, and what else was too long to keep
    tensors: Mapping[str, Tensor]  # those that were wanted
    tensor_count: int  # all of them
    names_seen: tuple[str, ...]  # the first tensors, wanted or not
    file_bytes: int


def walk(file: WeightFile, *, wanted: Callable[[str], bool] | None = None) -> Walked:
    """Walks the whole header once. `wanted` says which tensors are kept: all of them, if None.

    HeaderError for a file that lies, breaks off, is of the other byte order or one of many shards.
    """
    cursor = Cursor(file, window_bytes=WINDOW_BYTES)
    start = read_start(cursor, file)
    if start.big_endian:
        raise cursor.error(
            "the file is big-endian, which the embedder does not read; convert it with"
            " gguf-py's gguf_convert_endian.py"
        )
    store = _key_store()
    read_keys(cursor, start, store)
    _check_room(cursor, store)
    _check_whole(cursor, store)
    picker = _Picker(cursor, wanted)
    tensors, _ = read_directory(
        cursor,
        start.tensor_count,
        alignment=alignment_of(cursor, store),
        file_bytes=file.size_bytes,
        wanted=picker,
    )
    return Walked(
        name=file.name,
        keys=store.keys,
        arrays=store.arrays,
        tensors={tensor.name: tensor for tensor in tensors},
        tensor_count=start.tensor_count,
        names_seen=tuple(picker.seen),
        file_bytes=file.size_bytes,
    )


def _key_store() -> KeyStore:
    store = KeyStore(
        max_bytes=KEPT_BYTES, max_string_bytes=KEPT_STRING_BYTES, max_numbers=KEPT_NUMBERS
    )

    def wanted(key: str) -> bool:
        """Also counts what is wanted; beyond the room nothing is kept, and the walk ends in an error."""
        if not _is_ours(key, store.keys.get("general.architecture")):
            return False
        store.stored_bytes += getsizeof(key) + _SLOT_BYTES
        return store.stored_bytes <= KEPT_BYTES

    store.wanted = wanted
    return store


def _is_ours(key: str, architecture: Value | None) -> bool:
    """Keys of the model, its vocabulary and its shards. Any key may be the model's own before it is
    known what it is called; converters write that first.
    """
    if key.startswith("general."):
        return key in _GENERAL
    ours = architecture is None or key.startswith(f"{architecture}.")
    return ours or key.startswith(("tokenizer.", "split."))


def _check_room(cursor: Cursor, store: KeyStore) -> None:
    if store.stored_bytes > store.max_bytes:
        raise HeaderLimitError(
            "keys of the model, in bytes",
            value=store.stored_bytes,
            limit=store.max_bytes,
            file=cursor.name,
        )


def _check_whole(cursor: Cursor, store: KeyStore) -> None:
    count = store.keys.get("split.count", 1)
    if count not in (0, 1):
        raise HeaderError(
            f"is one of {quoted(count)} shards, and the embedder reads single files; "
            "merge them: llama-gguf-split --merge FIRST-SHARD.gguf WHOLE.gguf",
            file=cursor.name,
        )


class _Picker:
    """Says which tensors are kept, and remembers the names of the first."""

    def __init__(self, cursor: Cursor, wanted: Callable[[str], bool] | None) -> None:
        self.seen: list[str] = []
        self._cursor = cursor
        self._wanted = wanted
        self._kept = 0

    def __call__(self, name: str) -> bool:
        if len(self.seen) < NAMES_SEEN:
            self.seen.append(name)
        if self._wanted is not None and not self._wanted(name):
            return False
        self._kept += 1
        self._cursor.check_limit("number of tensors to store", self._kept, KEPT_TENSORS)
        return True
