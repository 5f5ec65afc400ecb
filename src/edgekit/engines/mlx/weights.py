"""A model -> the memory lines of its weights: as stored, or as mlx_lm.convert would write them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.mlx.models import Head, MlxModel, mlx_model
from edgekit.engines.mlx.prepared import prepare
from edgekit.engines.mlx.quantization import (
    FOUR_BIT,
    PLAIN,
    AsStored,
    BitsRecipe,
    Packing,
    Quantize,
    packed_bytes,
    packing_words,
    stated_overrides,
    stated_quantize,
)
from edgekit.errors import RefusedError, UnknownArchitectureError
from edgekit.formats.quantization import is_companion
from edgekit.formats.types import ModelHeader, Quantization, Tensor
from edgekit.machine.types import DEVICE
from edgekit.model import Role, block_of, roles_of
from edgekit.model.hyperparameters import text_section
from edgekit.model.tensor_recipes import ExpectedTensor, TensorKind, TensorRole
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import (
    LatentAttention,
    Layer,
    Model,
    ModelGeometry,
    Recurrent,
    SharedCache,
    stored_layers,
)
from edgekit.units import Basis, format_bytes

# Matrices follow from config.json exactly for most models; small vectors of some families do not.
CONFIG_BOUND = 0.005
NAMES_BOUND = 0.03  # sizes read off tensor names and shapes
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float": 4, "half": 2}  # in config.json
_FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # in safetensors
_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")
_KEYS_AND_VALUES = frozenset({TensorRole.KEY, TensorRole.VALUE})
_DROPPED_ROLES = frozenset({Role.TOWER, Role.MTP})
_FP8 = frozenset({"F8_E4M3", "F8_E5M2"})
_UNPACKED_FP8_BYTES = 2  # sanitize turns fp8 into bf16
# Roles whose matrices mlx_lm.convert packs, for an architecture that is known by its tensor names only.
_PACKED_ROLES = frozenset(
    {Role.EMBEDDING, Role.OUTPUT, Role.ATTENTION, Role.FEED_FORWARD, Role.EXPERTS, Role.RECURRENT}
)
_MATRICES = frozenset({TensorKind.LINEAR, TensorKind.EMBEDDING, TensorKind.EXPERT})
_EIGHT_BIT = Packing(bits=8, group_size=64)
_RECIPE_BITS = {  # convert.py:24: low, high
    BitsRecipe.MIXED_2_6: (2, 6),
    BitsRecipe.MIXED_3_4: (3, 4),
    BitsRecipe.MIXED_3_6: (3, 6),
    BitsRecipe.MIXED_4_6: (4, 6),
}


def weight_lines(model: Model, quantize: Quantize | AsStored | None) -> tuple[MemoryLine, ...]:
    """One line per layer, and one for everything outside the layers.

    `quantize` None: as stored if the repository is quantised, else as if converted to 4 bits.
    """
    stored = model.header.quantization
    if quantize is None and stored is None:
        quantize = Quantize(packing=FOUR_BIT)
    if isinstance(quantize, Quantize) and (quantize != PLAIN or stored is not None):
        return _converted_lines(model, quantize)
    stated = stated_quantize(stored, mlx_model(model.header.config).name)
    if model.header.tensors is not None:
        return _loaded_lines(model)
    return _stated_lines(model, stated)


def _converted_lines(model: Model, quantize: Quantize) -> tuple[MemoryLine, ...]:
    """Weights as mlx_lm.convert would write them: by config.json, or by tensor names for an unknown architecture."""
    file = mlx_model(model.header.config)
    if quantize.recipe is not None and not file.downs:
        raise RefusedError("mlx-lm: Model does not have expected keys for mixed quant.")
    because = f"as if converted by mlx_lm.convert: {_describe(quantize)}"
    try:
        return _expected_lines(model, quantize, because)
    except UnknownArchitectureError:
        if model.header.tensors is None:
            raise
    # by names and shapes alone: every matrix packed, every vector and convolution plain
    packing, number_bytes = quantize.packing, item_bytes(model.header)
    sizes: dict[int | None, int] = defaultdict(int)
    for tensor, role in _used_tensors(model, file):
        is_matrix = len(tensor.shape) > 1 and role in _PACKED_ROLES and "conv" not in tensor.name
        if is_matrix and tensor.shape[-1] % packing.group_size == 0:
            size = packed_bytes(tensor.elements, packing, number_bytes)
        else:
            size = tensor.elements * number_bytes
        sizes[block_of(tensor.name)] += size
    return _lines(sizes, f"{because}; from the tensor names", Basis.MODELLED, NAMES_BOUND)


def _loaded_lines(model: Model) -> tuple[MemoryLine, ...]:
    """Weights as stored, by the tensor directory of the files."""
    file, tensors = mlx_model(model.header.config), model.header.tensors or ()
    stored = model.header.quantization
    method = "" if stored is None else stored.method
    by_name = {tensor.name: tensor for tensor in tensors}
    sizes: dict[int | None, int] = defaultdict(int)
    dropped_bytes = sum(tensor.size_bytes for tensor in tensors)
    for tensor, _ in _used_tensors(model, file):
        sizes[block_of(tensor.name)] += _loaded_bytes(tensor, method, by_name)
        dropped_bytes -= tensor.size_bytes
    because = "sum of the tensors in the files"
    if dropped_bytes:
        because += f", without {format_bytes(dropped_bytes)} that mlx-lm does not load"
    return _lines(sizes, because, Basis.EXACT)


def _stated_lines(model: Model, quantize: Quantize) -> tuple[MemoryLine, ...]:
    """Weights as stored, without a tensor directory: the index's total if mlx-lm loads everything unchanged, else by
    config.json.
    """
    stored = model.header.quantization
    has_dropped = model.geometry.towers or model.geometry.mtp_layers
    is_unchanged = stored is None or stored.mlx or stored.method == "mxfp4"
    if model.header.tensor_bytes is not None and not has_dropped and is_unchanged:
        return _lines({None: model.header.tensor_bytes}, "total of the index", Basis.EXACT)
    return _expected_lines(model, quantize, f"from config.json: {_describe(quantize)}", stored)


def _describe(quantize: Quantize) -> str:
    """The quantisation in words, for the explanation of a line."""
    if quantize == PLAIN:
        return "plain numbers"
    if quantize.recipe is not None:
        return f"{quantize.recipe.value}, group {quantize.packing.group_size}"
    rest_text = packing_words(quantize.packing) if quantize.rest else "the rest plain"
    if quantize.experts is None:
        return rest_text
    return f"experts {packing_words(quantize.experts)}, {rest_text}"


def _expected_lines(
    model: Model, quantize: Quantize, because: str, stored: Quantization | None = None
) -> tuple[MemoryLine, ...]:
    """Weights by the tensors that follow from config.json. Raises UnknownArchitectureError."""
    config, geometry = model.header.config, model.geometry
    file = mlx_model(config)
    quantizer = Quantizer(
        file=file,
        layers=len(stored_layers(geometry)),
        item_bytes=item_bytes(model.header),
        quantize=quantize,
        overrides=stated_overrides(stored),
        stated=stored is not None,
    )
    sizes: dict[int | None, int] = defaultdict(int)
    for tensor in prepare(model).tensors.get(lambda: mlx_tensors(geometry, config, file)):
        sizes[tensor.layer] += quantizer.size_bytes(tensor)
    if geometry.basis is Basis.ASSUMED:
        return _lines(sizes, f"{because}; {geometry.because}", Basis.ASSUMED)
    return _lines(sizes, because, Basis.MODELLED, CONFIG_BOUND)


def _lines(
    sizes: Mapping[int | None, int], because: str, basis: Basis, within: float | None = None
) -> tuple[MemoryLine, ...]:
    """Sizes by layer as memory lines; None is the line for everything outside the layers."""
    ordered = sorted(sizes.items(), key=lambda item: -1 if item[0] is None else item[0])
    return tuple(
        MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=size,
            pool=DEVICE,
            layer=layer,
            basis=basis,
            because=because,
            within=within,
        )
        for layer, size in ordered
    )


def item_bytes(header: ModelHeader) -> int:
    """Bytes per number in caches and unquantised weights.

    By the type of most unquantised tensors, else the one that config.json states, else 2.
    """
    if header.tensors:
        counts = Counter(
            tensor.type.name for tensor in header.tensors if tensor.type.name in _FLOAT_BYTES
        )
        if counts:
            return _FLOAT_BYTES[counts.most_common(1)[0][0]]
    inner = (header.config.get(name) for name in _SECTIONS)
    for section in (header.config, *(part for part in inner if isinstance(part, Mapping))):
        for key in ("torch_dtype", "dtype"):
            value = section.get(key)
            if isinstance(value, str) and value.removeprefix("torch.") in _DTYPE_BYTES:
                return _DTYPE_BYTES[value.removeprefix("torch.")]
    return 2


def mlx_tensors(
    geometry: ModelGeometry, config: Mapping[str, Any], file: MlxModel
) -> tuple[ExpectedTensor, ...]:
    """The tensors that mlx-lm builds: no towers, no prediction blocks. May raise UnknownArchitectureError."""
    layers: dict[int | None, Layer] = {layer.index: layer for layer in geometry.layers}
    as_built = replace(geometry, tied_embeddings=is_tied(config, file))
    return tuple(
        built
        for tensor in expected_tensors(as_built, config)
        for built in _built_tensors(tensor, layers.get(tensor.layer), file)
    )


def is_tied(config: Mapping[str, Any], file: MlxModel) -> bool:
    """Whether the output head is the embedding."""
    if file.head in {Head.TIED, Head.OWN}:
        return file.head is Head.TIED
    for section in (text_section(config), config):
        for key in ("tie_word_embeddings", "share_input_output_layers"):
            if isinstance(section.get(key), bool):
                return bool(section[key])
    return file.head is Head.TIED_BY_DEFAULT


def _built_tensors(
    tensor: ExpectedTensor, layer: Layer | None, file: MlxModel
) -> Iterator[ExpectedTensor]:
    """The tensors that mlx-lm builds for an expected one: most unchanged, some split, unpackable or left out."""
    mixer = None if layer is None else layer.mixer
    role = tensor.role
    if role is TensorRole.HEAD and file.raw_head:
        yield replace(tensor, kind=TensorKind.RAW)
    elif role is TensorRole.ROUTER and tensor.kind is not TensorKind.BIAS:
        yield replace(tensor, kind=TensorKind.RAW if file.raw_router else TensorKind.LINEAR)
    elif role is TensorRole.LATENT_UP and file.split_latent and isinstance(mixer, LatentAttention):
        rank = tensor.shape[-1]  # embed_q and unembed_out: a small matrix for each head
        yield replace(tensor, shape=(mixer.heads, rank, mixer.key_dim - mixer.rope_dim))
        yield replace(tensor, shape=(mixer.heads, mixer.value_dim, rank))
    elif role is TensorRole.STATE_IN and file.split_state and isinstance(mixer, Recurrent):
        out, into = tensor.shape
        yield replace(tensor, shape=(out - mixer.inner, into))
        yield replace(tensor, shape=(mixer.inner, into), role=TensorRole.VALUE)
    elif file.shared_kv or role not in _KEYS_AND_VALUES or not isinstance(mixer, SharedCache):
        yield tensor


def _used_tensors(model: Model, file: MlxModel) -> Iterator[tuple[Tensor, Role]]:
    """The tensors that sanitize keeps: no towers, no prediction blocks, no second copy of a tied head."""
    tensors, has_tied_head = model.header.tensors or (), is_tied(model.header.config, file)
    layers = len(stored_layers(model.geometry))
    for tensor, role in zip(tensors, roles_of(tensors, layers=layers), strict=True):
        is_copy = has_tied_head and role is Role.OUTPUT
        if role not in _DROPPED_ROLES and not is_copy and "inv_freq" not in tensor.name:
            yield tensor, role


def _loaded_bytes(tensor: Tensor, method: str, by_name: Mapping[str, Tensor]) -> int:
    """Bytes of a stored tensor once mlx-lm has loaded it."""
    if method == "fp8":
        if tensor.type.name in _FP8:
            return tensor.elements * _UNPACKED_FP8_BYTES
        return 0 if is_companion(tensor.name, by_name) else tensor.size_bytes
    if method in {"awq", "gptq"} and tensor.name.endswith(".qzeros"):
        scales = by_name.get(tensor.name.removesuffix(".qzeros") + ".scales")
        # zero points become biases, one for each scale
        return tensor.size_bytes if scales is None else scales.size_bytes
    if method == "compressed-tensors" and tensor.name.endswith(".weight_scale"):
        return 2 * tensor.size_bytes  # a bias for every scale
    return tensor.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizer:
    """How each matrix of a model is stored."""

    file: MlxModel
    layers: int
    item_bytes: int
    quantize: Quantize
    overrides: Mapping[tuple[int | None, TensorRole], Packing | None] = field(default_factory=dict)
    stated: bool = False  # config.json lists every exception, those of the model file included

    def size_bytes(self, tensor: ExpectedTensor) -> int:
        """Bytes of a tensor, packed or not."""
        if tensor.kind not in _MATRICES:
            is_f32 = len(tensor.shape) == 1 and tensor.role in self.file.f32
            return tensor.elements * (4 if is_f32 else self.item_bytes)
        if self.file.ternary and tensor.kind is TensorKind.LINEAR and tensor.layer is not None:
            return tensor.elements // 4 + self.item_bytes  # four to a byte, and one scale
        packing = self.packing(tensor)
        if packing is None:
            return tensor.elements * self.item_bytes
        return packed_bytes(tensor.elements, packing, self.item_bytes)

    def packing(self, tensor: ExpectedTensor) -> Packing | None:
        """How the matrix is packed; None if it is not. Rows that are not a multiple of the group are never packed."""
        quantize = self.quantize
        if quantize.experts is not None and tensor.kind is TensorKind.EXPERT:
            return quantize.experts
        if (tensor.layer, tensor.role) in self.overrides:
            return self.overrides[tensor.layer, tensor.role]
        if not quantize.rest or tensor.shape[-1] % quantize.packing.group_size:
            return None
        if self.stated:
            return quantize.packing
        if quantize.recipe is None:
            if tensor.role in self.file.plain:
                return None
            return _EIGHT_BIT if tensor.role in self.file.eight_bit else quantize.packing
        # more bits for the head, and for values and down projections of important layers: the first and the last
        # eighth, and every third in between
        low_bits, high_bits = _RECIPE_BITS[quantize.recipe]
        index, eighth = tensor.layer or 0, self.layers // 8
        is_edge = index < eighth or index >= 7 * self.layers // 8
        is_important_layer = is_edge or (index - eighth) % 3 == 2
        is_important_role = tensor.role in self.file.values | self.file.downs
        is_high = tensor.role is TensorRole.HEAD or (is_important_role and is_important_layer)
        return replace(quantize.packing, bits=high_bits if is_high else low_bits)
