"""Tensors and what `mlx_lm.convert` was told -> bytes (utils.py:1005 quantize_model, convert.py:19 recipes)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edgekit.engines.mlx.models import MlxModel
from edgekit.engines.mlx.packing import packed_bytes
from edgekit.engines.mlx.types import BitsRecipe, Packing, Quantize
from edgekit.errors import RefusedError
from edgekit.model.tensor_recipes import ExpectedTensor, TensorKind, TensorRole

_MATRICES = frozenset({TensorKind.LINEAR, TensorKind.EMBEDDING, TensorKind.EXPERT})
_EIGHT_BIT = Packing(bits=8, group_size=64)
_RECIPE_BITS = {  # convert.py:24: low, high
    BitsRecipe.MIXED_2_6: (2, 6),
    BitsRecipe.MIXED_3_4: (3, 4),
    BitsRecipe.MIXED_3_6: (3, 6),
    BitsRecipe.MIXED_4_6: (4, 6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizer:
    """Decides for one model how each of its matrices is stored."""

    file: MlxModel
    layers: int
    item_bytes: int
    quantize: Quantize | None  # None: nothing is packed
    overrides: Mapping[tuple[int | None, TensorRole], Packing | None] = field(default_factory=dict)
    stated: bool = False  # config.json names every exception: the model file's own rules are in it

    def size_bytes(self, tensor: ExpectedTensor) -> int:
        if tensor.kind not in _MATRICES:
            return tensor.elements * self._vector_bytes(tensor)
        if self._is_ternary(tensor):
            return tensor.elements // 4 + self.item_bytes  # four to a byte, and one scale
        packing = self.packing(tensor)
        if packing is None:
            return tensor.elements * self.item_bytes
        return packed_bytes(tensor.elements, packing, self.item_bytes)

    def packing(self, tensor: ExpectedTensor) -> Packing | None:
        """None: the matrix stays as it is. One whose rows the group does not divide always does."""
        asked = self.quantize
        if asked is None or self._is_ternary(tensor):
            return None
        if asked.experts is not None and tensor.kind is TensorKind.EXPERT:
            return asked.experts
        if (tensor.layer, tensor.role) in self.overrides:
            return self.overrides[tensor.layer, tensor.role]
        if not asked.rest or tensor.shape[-1] % asked.packing.group_size:
            return None
        if self.stated:
            return asked.packing
        if asked.recipe is not None:
            return self._mixed(tensor, asked.recipe, asked.packing)
        if tensor.role in self.file.plain:
            return None
        return _EIGHT_BIT if tensor.role in self.file.eight_bit else asked.packing

    def _mixed(self, tensor: ExpectedTensor, recipe: BitsRecipe, packing: Packing) -> Packing:
        low, high = _RECIPE_BITS[recipe]
        wanted = tensor.role is TensorRole.HEAD or (
            tensor.role in self.file.values | self.file.downs and self._more_bits(tensor.layer)
        )
        return replace(packing, bits=high if wanted else low)

    def _more_bits(self, layer: int | None) -> bool:
        """The first and the last eighth of the layers, and every third in between."""
        index, eighth = layer or 0, self.layers // 8
        return index < eighth or index >= 7 * self.layers // 8 or (index - eighth) % 3 == 2

    def _is_ternary(self, tensor: ExpectedTensor) -> bool:
        return self.file.ternary and tensor.kind is TensorKind.LINEAR and tensor.layer is not None

    def _vector_bytes(self, tensor: ExpectedTensor) -> int:
        vector = len(tensor.shape) == 1
        return 4 if vector and tensor.role in self.file.f32 else self.item_bytes


def check(quantize: Quantize | None, file: MlxModel) -> None:
    """Raises RefusedError where a recipe does not know the model's names."""
    if quantize is not None and quantize.recipe is not None and not file.downs:
        raise RefusedError("mlx-lm: Model does not have expected keys for mixed quant.")
