"""The tensor list of a model compressed to a few lines of text: most blocks of a model are alike.

"blk.*.attn_q.weight 4096x4096 F16 0-35": a name with * for the number of the block, a shape (outermost first), a type
of formats/dtype.py, and the blocks that have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from edgekit.errors import HeaderError
from edgekit.formats import limits
from edgekit.formats.dtype import by_name
from edgekit.formats.types import GgufTensor, Tensor
from edgekit.index.records import RUN
from edgekit.model.hyperparameters import MAX_LAYERS

_BLOCK = re.compile(r"blk\.(\d{1,4})\.")
_ANY_BLOCK = "blk.*."


def runs_of(tensors: Iterable[Tensor | GgufTensor]) -> tuple[str, ...]:
    """The lines for these tensors, those outside the blocks first. HeaderError for a name that no line can express."""
    blocks_of: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for tensor in tensors:
        block = _BLOCK.match(tensor.name)
        name = _ANY_BLOCK + tensor.name[block.end() :] if block else tensor.name
        blocks = blocks_of.setdefault((name, tensor.shape or (1,), tensor.type.name), [])
        if block:
            blocks.append(int(block[1]))
    lines = []
    for (name, shape, type_), blocks in sorted(blocks_of.items(), key=lambda item: bool(item[1])):
        ranges: list[tuple[int, int]] = []  # [0, 1, 2, 7] -> [(0, 2), (7, 7)]
        for number in sorted(blocks):
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        text = ",".join(
            f"{first}" if first == last else f"{first}-{last}" for first, last in ranges
        )
        line = " ".join((name, "x".join(map(str, shape)), type_, text)).rstrip()
        if not RUN.fullmatch(line):
            raise HeaderError(f"tensor {name!r:.80} cannot be stored: unusual name or shape")
        lines.append(line)
    return tuple(lines)


def tensors_of(runs: Iterable[str], *, name: str) -> tuple[Tensor, ...]:
    """The tensors of these lines. HeaderError for an invalid line, an unknown type, or too many tensors."""
    tensors: list[Tensor] = []
    for run in runs:
        tensors += _tensors(run, name)
        if len(tensors) > limits.TENSORS_PER_FILE:
            raise HeaderError(f"more than {limits.TENSORS_PER_FILE:,} tensors", file=name)
    return tuple(tensors)


def _tensors(run: str, file: str) -> Iterator[Tensor]:
    """The tensors of one line."""
    if not RUN.fullmatch(run):
        raise HeaderError(f"{run!r:.80} is not a valid line of tensors", file=file)
    name, lengths, type_, *rest = run.split(" ")
    shape = tuple(map(int, lengths.split("x")))
    pattern = GgufTensor(name=name, shape=shape, type=by_name(type_))
    size = pattern.size_bytes  # raises HeaderError for an invalid shape
    names = [name]
    if rest:  # '0-2,7' -> [(0, 2), (7, 7)]
        ends = (part.partition("-") for part in rest[0].split(","))
        ranges = [(int(first), int(last or first)) for first, _, last in ends]
        is_valid = all(first <= last < MAX_LAYERS for first, last in ranges)
        if len(ranges) > MAX_LAYERS or not is_valid:
            raise HeaderError(
                f"{rest[0]!r:.60}: block numbers go from 0 to {MAX_LAYERS - 1:,}", file=file
            )
        blocks = (block for first, last in ranges for block in range(first, last + 1))
        names = [name.replace("*", str(block), 1) for block in blocks]
    for tensor_name in names:
        yield Tensor(name=tensor_name, type=pattern.type, shape=shape, size_bytes=size, offset=0)
