"""A tensor directory -> a few lines of it, and back: the blocks of a model are alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from edgekit.catalog.types import TensorRun
from edgekit.errors import HeaderError
from edgekit.header import limits
from edgekit.header.dtype import by_name
from edgekit.header.types import Tensor
from edgekit.memory.mixing import LaidTensor

_BLOCK = re.compile(r"blk\.(\d{1,6})\.")
_HERE = "blk.*."


def runs_of(tensors: Iterable[Tensor | LaidTensor]) -> tuple[TensorRun, ...]:
    """Those outside the blocks first, then block by block as they first occur."""
    found: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for tensor in tensors:
        block = _BLOCK.match(tensor.name)
        name = _HERE + tensor.name[block.end() :] if block else tensor.name
        blocks = found.setdefault((name, tensor.shape, tensor.type.name), [])
        if block:
            blocks.append(int(block[1]))
    runs = [
        TensorRun(name=name, shape=shape, type=type_, blocks=_stretches(sorted(blocks)))
        for (name, shape, type_), blocks in found.items()
    ]
    return tuple(sorted(runs, key=lambda run: bool(run.blocks)))


def _stretches(blocks: list[int]) -> tuple[tuple[int, int], ...]:
    """[0, 1, 2, 7] -> ((0, 2), (7, 7))."""
    stretches: list[tuple[int, int]] = []
    for block in blocks:
        if stretches and block == stretches[-1][1] + 1:
            stretches[-1] = (stretches[-1][0], block)
        else:
            stretches.append((block, block))
    return tuple(stretches)


def tensors_of(runs: Iterable[TensorRun], *, name: str) -> tuple[Tensor, ...]:
    """The directory. HeaderError for a type that there is not, or rows that its blocks do not divide."""
    tensors: list[Tensor] = []
    for run in runs:
        tensors += _tensors(run)
        if len(tensors) > limits.TENSORS_PER_FILE:
            raise HeaderError(f"more than {limits.TENSORS_PER_FILE:,} tensors", file=name)
    return tuple(tensors)


def _tensors(run: TensorRun) -> Iterator[Tensor]:
    laid = LaidTensor(name=run.name, shape=run.shape, type=by_name(run.type))
    size = laid.size_bytes
    for name in _names(run):
        yield Tensor(name=name, type=laid.type, shape=run.shape, size_bytes=size, offset=0)


def _names(run: TensorRun) -> Iterator[str]:
    if not run.blocks:
        yield run.name
    for first, last in run.blocks:
        for block in range(first, last + 1):
            yield run.name.replace("*", str(block), 1)
