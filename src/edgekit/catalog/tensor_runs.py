"""The tensor list of a model compressed to a few lines of text: most blocks of a model are alike.

"blk.*.attn_q.weight 4096x4096 F16 0-35": a name with * for the number of the block, a shape (outermost first), a type
of formats/dtype.py, and the blocks that have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from edgekit.catalog.records import RUN
from edgekit.errors import HeaderError
from edgekit.formats import limits
from edgekit.formats.dtype import by_name
from edgekit.formats.types import GgufTensor, Tensor
from edgekit.model.hyperparameters import MAX_LAYERS

_BLOCK = re.compile(r"blk\.(\d{1,4})\.")
_HERE = "blk.*."

Blocks = tuple[tuple[int, int], ...]  # first and last of each range


def runs_of(tensors: Iterable[Tensor | GgufTensor]) -> tuple[str, ...]:
    """Lines for the tensors: first those outside the blocks. HeaderError for a name that this format cannot express."""
    found: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for tensor in tensors:
        block = _BLOCK.match(tensor.name)
        name = _HERE + tensor.name[block.end() :] if block else tensor.name
        blocks = found.setdefault((name, tensor.shape or (1,), tensor.type.name), [])
        if block:
            blocks.append(int(block[1]))
    ordered = sorted(found.items(), key=lambda item: bool(item[1]))
    return tuple(_line(*key, blocks) for key, blocks in ordered)


def _line(name: str, shape: tuple[int, ...], type_: str, blocks: list[int]) -> str:
    line = " ".join((name, "x".join(map(str, shape)), type_, ranges_text(_stretches(blocks))))
    if not RUN.fullmatch(line.rstrip()):
        raise HeaderError(f"tensor {name!r:.80} cannot be stored: unusual name or shape")
    return line.rstrip()


def _stretches(blocks: list[int]) -> Blocks:
    """[0, 1, 2, 7] -> ((0, 2), (7, 7))."""
    stretches: list[tuple[int, int]] = []
    for block in sorted(blocks):
        if stretches and block == stretches[-1][1] + 1:
            stretches[-1] = (stretches[-1][0], block)
        else:
            stretches.append((block, block))
    return tuple(stretches)


def ranges_text(blocks: Blocks) -> str:
    """((0, 2), (7, 7)) -> '0-2,7'."""
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in blocks)


def tensors_of(runs: Iterable[str], *, name: str) -> tuple[Tensor, ...]:
    """The tensors of these lines. HeaderError for an invalid line, an unknown type, or too many tensors."""
    tensors: list[Tensor] = []
    for run in runs:
        tensors += _tensors(run, name)
        if len(tensors) > limits.TENSORS_PER_FILE:
            raise HeaderError(f"more than {limits.TENSORS_PER_FILE:,} tensors", file=name)
    return tuple(tensors)


def _tensors(run: str, file: str) -> Iterator[Tensor]:
    if not RUN.fullmatch(run):
        raise HeaderError(f"{run!r:.80} is not a valid line of tensors", file=file)
    name, lengths, type_, *ranges = run.split(" ")
    shape = tuple(map(int, lengths.split("x")))
    laid = GgufTensor(name=name, shape=shape, type=by_name(type_))
    size = laid.size_bytes
    names = _names(name, _read_ranges(ranges[0], file)) if ranges else (name,)
    for one in names:
        yield Tensor(name=one, type=laid.type, shape=shape, size_bytes=size, offset=0)


def _names(name: str, blocks: Blocks) -> Iterator[str]:
    for first, last in blocks:
        for block in range(first, last + 1):
            yield name.replace("*", str(block), 1)


def _read_ranges(text: str, file: str) -> Blocks:
    """'0-2,7' -> ((0, 2), (7, 7))."""
    pairs = [(int(a), int(b or a)) for a, _, b in (one.partition("-") for one in text.split(","))]
    if len(pairs) > MAX_LAYERS or any(not a <= b < MAX_LAYERS for a, b in pairs):
        raise HeaderError(f"{text!r:.60}: block numbers go from 0 to {MAX_LAYERS - 1:,}", file=file)
    return tuple(pairs)
