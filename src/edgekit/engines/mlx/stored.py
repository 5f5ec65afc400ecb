"""A tensor directory -> the bytes mlx-lm loads from it, layer by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from edgekit.engines.mlx.packing import packed_bytes
from edgekit.engines.mlx.types import Packing
from edgekit.formats.quantization import is_companion
from edgekit.formats.types import Quantization, Tensor
from edgekit.model.roles import Role, block_of, roles_of

_DROPPED = frozenset({Role.TOWER, Role.MTP})
_FP8 = frozenset({"F8_E4M3", "F8_E5M2"})
_UNFOLDED_BYTES = 2  # sanitize makes bf16 of fp8
_PACKED = frozenset(
    {Role.EMBEDDING, Role.OUTPUT, Role.ATTENTION, Role.FEED_FORWARD, Role.EXPERTS, Role.RECURRENT}
)


def loaded_bytes(
    tensors: Iterable[Tensor], quantization: Quantization | None, *, layers: int, tied: bool
) -> tuple[dict[int | None, int], int]:
    """Bytes by layer (None: outside them), and bytes of the files that are left out."""
    listed = tuple(tensors)
    method = "" if quantization is None else quantization.method
    named = {tensor.name: tensor for tensor in listed}
    sizes: dict[int | None, int] = defaultdict(int)
    for tensor, _ in _used(listed, layers=layers, tied=tied):
        sizes[block_of(tensor.name)] += _loaded(tensor, method, named)
    used = sum(tensor.size_bytes for tensor, _ in _used(listed, layers=layers, tied=tied))
    return dict(sizes), sum(tensor.size_bytes for tensor in listed) - used


def converted_bytes(
    tensors: Iterable[Tensor], packing: Packing, item_bytes: int, *, layers: int, tied: bool
) -> dict[int | None, int]:
    """By names and shapes alone: every matrix packed, every vector and convolution plain."""
    sizes: dict[int | None, int] = defaultdict(int)
    for tensor, role in _used(tuple(tensors), layers=layers, tied=tied):
        is_matrix = len(tensor.shape) > 1 and role in _PACKED and "conv" not in tensor.name
        if is_matrix and tensor.shape[-1] % packing.group_size == 0:
            sizes[block_of(tensor.name)] += packed_bytes(tensor.elements, packing, item_bytes)
        else:
            sizes[block_of(tensor.name)] += tensor.elements * item_bytes
    return dict(sizes)


def _used(listed: tuple[Tensor, ...], *, layers: int, tied: bool) -> Iterator[tuple[Tensor, Role]]:
    """What sanitize leaves: no towers, no prediction blocks, no second copy of a tied head."""
    for tensor, role in zip(listed, roles_of(listed, layers=layers), strict=True):
        second = tied and role is Role.OUTPUT
        if role not in _DROPPED and not second and "inv_freq" not in tensor.name:
            yield tensor, role


def _loaded(tensor: Tensor, method: str, named: Mapping[str, Tensor]) -> int:
    if method == "fp8":
        return _unfolded(tensor, named)
    if method in {"awq", "gptq"} and tensor.name.endswith(".qzeros"):
        scales = named.get(tensor.name.removesuffix(".qzeros") + ".scales")
        return tensor.size_bytes if scales is None else scales.size_bytes  # they become biases
    if method == "compressed-tensors" and tensor.name.endswith(".weight_scale"):
        return 2 * tensor.size_bytes  # and a bias beside every scale
    return tensor.size_bytes


def _unfolded(tensor: Tensor, named: Mapping[str, Tensor]) -> int:
    if tensor.type.name in _FP8:
        return tensor.elements * _UNFOLDED_BYTES
    return 0 if is_companion(tensor.name, named) else tensor.size_bytes
