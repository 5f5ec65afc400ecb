"""The tensors of the F16 GGUF that a conversion would write: names, shapes, and which stay at F32.

Names are in gguf_tensor_names.json, exceptions in the architectures' records (`gguf_names`, `gguf_fused`).
Types are those of prepare_tensors in conversion/base.py, llama.cpp @ 0c1e570.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from edgekit.engines.llamacpp.architectures import conversion_of, known_architecture
from edgekit.formats.dtype import by_name
from edgekit.formats.records import damaged, load_records
from edgekit.formats.types import GgufTensor
from edgekit.model.hyperparameters import MAX_NUMBER, dig, text_section
from edgekit.model.tensor_recipes import (
    ExpectedTensor,
    Streams,
    TensorKind,
    TensorRecipe,
    TensorRole,
    tensor_recipe,
)
from edgekit.model.tensors import chooses_by_token, layer_tensors, outer_tensors, prediction_tensors
from edgekit.model.types import (
    Cell,
    CompressedAttention,
    HybridLayer,
    LatentAttention,
    LayerKind,
    ModelGeometry,
    Recurrent,
    attention_of,
)

_F32, _F16 = by_name("F32"), by_name("F16")

Names = Mapping[TensorRole, Sequence[str]]


@cache
def _tensor_names() -> Mapping[str, Mapping[str, Names]]:
    """gguf_tensor_names.json: by part (outside, layer, the cell of a recurrence), then by kind of tensor."""
    file = "gguf_tensor_names.json"
    try:
        return {
            record["part"]: {
                kind: {TensorRole[role.upper()]: listed for role, listed in names.items()}
                for kind, names in record.items()
                if kind != "part"
            }
            for record in load_records("edgekit.engines.llamacpp", file)
        }
    except (KeyError, AttributeError) as error:
        raise damaged(f"{file}: {error}") from error


# Names of a layer's norms of hidden width, by their number.
_HIDDEN_NORMS = {
    1: ["attn_norm"],
    2: ["attn_norm", "ffn_norm"],
    3: ["attn_norm", "ffn_norm", "ffn_norm_exps"],
    4: ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
    7: [
        "attn_norm",
        "post_attention_norm",
        "ffn_norm",
        "post_ffw_norm",
        "post_ffw_norm_1",
        "pre_ffw_norm_2",
        "post_ffw_norm_2",
    ],
}
_FEEDS = frozenset({TensorRole.DOWN, TensorRole.EXPERT_DOWN})
_PREDICTION_NORMS = ["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"]
_ROUTER_SCALES = ["ffn_gate_inp.scale", "ffn_down_exps.scale", "layer_output_scale.weight"]
_HYPER_ARRAYS = [f"hc_{part}_{what}.weight" for part in ("attn", "ffn") for what in ("fn", "scale")]
_HYPER_BIASES = ["hc_attn_base.weight", "hc_ffn_base.weight"]
_STEP_NORMS = ["ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"]

_AS_MATRIX = frozenset({TensorKind.LINEAR, TensorKind.EXPERT, TensorKind.EMBEDDING})
_AT_F32 = frozenset(
    {TensorRole.ROUTER, TensorRole.POSITION, TensorRole.SEGMENT, TensorRole.INDEX_WEIGHTS}
)
# conversion/minimax.py
_NAMES_AT_F32 = frozenset({"indexer.q_proj.weight", "indexer.k_proj.weight"})
# Matrices that some architectures store fused.
_FUSED = (
    (("attn_q", "attn_k", "attn_v"), "attn_qkv"),
    (("ffn_gate", "ffn_up"), "ffn_up"),
    (("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps"),
)
# Not a real key: the number of rope tables, if inferred from the tensor count.
ROPE_TABLES = "edgekit rope tables"
_ROPE_TABLES = {1: ("rope_freqs",), 2: ("rope_factors_long", "rope_factors_short")}
_TABLES_BY_ROPE = {"llama3": 1, "longrope": 2, "proportional": 1, "su": 2}


def gguf_tensors(
    geometry: ModelGeometry, config: Mapping[str, Any] | None = None
) -> tuple[GgufTensor, ...]:
    """The tensors that the converter would write at F16, including multi-token prediction blocks."""
    return tuple(
        one
        if block is None
        else GgufTensor(name=f"blk.{block}.{one.name}", shape=one.shape, type=one.type)
        for block, tensors in _blocks(geometry, config)
        for one in tensors
    )


def gguf_tensor_count(geometry: ModelGeometry, config: Mapping[str, Any] | None = None) -> int:
    """The number of tensors that the converter would write."""
    return sum(len(tensors) for _, tensors in _blocks(geometry, config))


def _blocks(
    geometry: ModelGeometry, config: Mapping[str, Any] | None
) -> Iterator[tuple[int | None, Sequence[GgufTensor]]]:
    """(block, its tensors), with None for those outside the blocks. Equal layers are computed once."""
    name, section = geometry.architecture, text_section(config or {})
    recipe = tensor_recipe(name)
    yield None, _laid(outer_tensors(geometry, config), None, name, recipe)
    # Rope frequency factors: one table for Llama 3, two for LongRoPE.
    count = section.get(ROPE_TABLES)
    if not isinstance(count, int):
        count = _TABLES_BY_ROPE.get("" if geometry.rope is None else geometry.rope.type, 0)
    if tables := _ROPE_TABLES.get(count, ()):
        factors = (rotary_dim(geometry, section) // 2,)
        yield None, [GgufTensor(name=f"{one}.weight", shape=factors, type=_F32) for one in tables]
    known: dict[object, Sequence[GgufTensor]] = {}
    for layer in geometry.layers[: len(geometry.layers) // geometry.loops]:
        hashed = recipe.streams is Streams.HYPER and chooses_by_token(section, layer.index)
        key = (layer.mixer, layer.dense, layer.experts, layer.index == 0, hashed)
        if key not in known:
            known[key] = _laid(layer_tensors(layer, geometry, config), layer.mixer, name, recipe)
            if hashed:  # DeepSeek-V4: the experts of every token in the first layers
                used = layer.experts.used if layer.experts is not None else 0
                shape = (geometry.vocabulary or 0, used)
                table = GgufTensor(name="ffn_gate_tid2eid.weight", shape=shape, type=by_name("I32"))
                known[key] = (*known[key], table)
        yield layer.index, known[key]
    left_out = conversion_of(name).drops_prediction or known_architecture(name).dense_prediction
    if geometry.mtp_layers and not left_out:
        predicting = prediction_tensors(replace(geometry, mtp_layers=1), config)
        tensors = _laid(predicting, geometry.layers[-1].mixer, name, recipe)
        for block in range(len(geometry.layers), len(geometry.layers) + geometry.mtp_layers):
            yield block, tensors


def rotary_dim(geometry: ModelGeometry, section: Mapping[str, Any]) -> int:
    """Rotated dimensions of a head in a layer with full attention."""
    stated = section.get("rotary_dim")
    if isinstance(stated, int) and 0 < stated <= MAX_NUMBER:
        return stated
    found = [one for layer in geometry.layers if (one := attention_of(layer.mixer))]
    latent = next((one.rope_dim for one in found if isinstance(one, LatentAttention)), None)
    if latent is not None:
        return latent
    width = max((one.key_dim for one in found), default=0)
    share = section.get("partial_rotary_factor")
    if share is None:
        share = dig(section, "rope_parameters.partial_rotary_factor")
    return int(width * share) if isinstance(share, (int, float)) and 0 < share <= 1 else width


def _laid(
    tensors: Sequence[ExpectedTensor],
    kind: LayerKind | None,
    architecture: str,
    recipe: TensorRecipe,
) -> Sequence[GgufTensor]:
    """The GGUF tensors of a layer of this kind; None: of those outside the layers."""
    naming = _Naming(_outside(recipe) if kind is None else _inside(recipe, tensors, kind))
    laid: list[GgufTensor] = []
    for tensor in tensors:
        name = naming.name(tensor)
        stem, dot, ending = name.rpartition(".")  # gguf_names: full names, or names without ending
        name = recipe.gguf_names.get(name, recipe.gguf_names.get(stem, stem) + dot + ending)
        if not name:
            continue
        for part, shape in _shaped(tensor, name, kind, architecture):
            at_f32 = tensor.role in _AT_F32 or part in _NAMES_AT_F32
            is_matrix = tensor.kind in _AS_MATRIX and len(shape) > 1
            type_ = _F16 if is_matrix and not at_f32 else _F32
            laid.append(GgufTensor(name=part, shape=shape, type=type_))
    for parts, whole in _FUSED:
        if whole in recipe.gguf_fused:
            laid = _fused(laid, parts, whole)
    return laid


def _outside(recipe: TensorRecipe) -> Mapping[str, Names]:
    names = _tensor_names()["outside"]
    if not recipe.embedding_norm:
        return names
    norms = {**names["norms"], TensorRole.NORM: ["token_embd_norm", "output_norm"]}
    return {**names, "norms": norms}


def _inside(
    recipe: TensorRecipe, tensors: Sequence[ExpectedTensor], kind: LayerKind
) -> Mapping[str, Names]:
    recurrent = _recurrence(kind)
    names = _tensor_names()
    cell = "" if recurrent is None else recurrent.cell.name.lower()
    own = names[cell]["names"] if cell in names else {}
    layer = names["layer"]
    norms, arrays, biases = {**layer["norms"]}, {**layer["arrays"], **own}, {**layer["biases"]}
    roles = Counter(one.role for one in tensors if one.kind is TensorKind.NORM)
    count = roles[TensorRole.NORM]
    if any(one.role is TensorRole.PREDICTION for one in tensors):
        count -= len(_PREDICTION_NORMS)
    if count == 1 and recipe.norms > 1 and any(one.role in _FEEDS for one in tensors):
        hidden = ["ffn_norm"]
    else:
        hidden = _HIDDEN_NORMS.get(count, ["norm"] * count)
    norms[TensorRole.NORM] = [*hidden, *_PREDICTION_NORMS]
    if recurrent is not None and recurrent.cell is Cell.LIGHTNING:
        norms[TensorRole.STATE_NORM] = ["attn_norm_2"]
    if recipe.step_norms:
        norms[TensorRole.STATE_NORM] = _STEP_NORMS
    if recipe.router_scales and any(one.role is TensorRole.ROUTER for one in tensors):
        arrays[TensorRole.SCALE] = _ROUTER_SCALES
    if recipe.streams is Streams.HYPER:
        arrays[TensorRole.RESIDUAL], biases[TensorRole.RESIDUAL] = _HYPER_ARRAYS, _HYPER_BIASES
    matrices = {**layer["matrices"], **own}
    return {"matrices": matrices, "norms": norms, "arrays": arrays, "biases": biases}


class _Naming:
    """Names the tensors of a layer in the expected order. `names`: of each role, by kind of tensor."""

    def __init__(self, names: Mapping[str, Names]) -> None:
        self.names = names
        self.counts = Counter[tuple[str, TensorRole]]()
        self.latest: dict[TensorRole, str] = {}

    def name(self, tensor: ExpectedTensor) -> str:
        role = tensor.role
        if tensor.kind is TensorKind.BIAS:
            if role in self.names["biases"]:
                return self._next("biases", role)
            latest = self.latest.get(role) or self._next("matrices", role)
            return latest.removesuffix(".weight") + ".bias"
        if tensor.kind is TensorKind.NORM:
            name = self._next("norms", role) + ".weight"
        elif tensor.kind in _AS_MATRIX:
            name = self._next("matrices", role) + ".weight"
        else:
            name = self._next("arrays", role)
        self.latest[role] = name
        return name

    def _next(self, kind: str, role: TensorRole) -> str:
        """The next name; the role itself if llama.cpp has no name for the tensor."""
        place, names = self.counts[kind, role], self.names[kind].get(role, ())
        self.counts[kind, role] += 1
        return names[place] if place < len(names) else f"{role.name.lower()}_{place}"


def _shaped(
    tensor: ExpectedTensor, name: str, kind: LayerKind | None, architecture: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) in the file; several if llama.cpp splits the tensor."""
    shape = tensor.shape
    if tensor.kind is TensorKind.EXPERT or tensor.count > 1:
        shape = (tensor.count, *shape)
    if tensor.role is TensorRole.LATENT_UP and isinstance(kind, LatentAttention):
        if known_architecture(architecture).full_heads or not kind.absorbed:
            yield "attn_kv_b.weight", shape
        else:
            plain = kind.key_dim - kind.rope_dim
            yield "attn_k_b.weight", (kind.heads, kind.latent_dim, plain)
            yield "attn_v_b.weight", (kind.heads, kind.value_dim, kind.latent_dim)
        return
    if len(shape) == 2 and shape[0] == 1:
        shape = shape[1:]  # a matrix of one row is a vector
    recurrent = _recurrence(kind)
    if recurrent is not None:
        shape = _state_shape(tensor, shape, recurrent)
    if tensor.role is TensorRole.OUTPUT_DOWN and isinstance(kind, CompressedAttention):
        groups = kind.heads * kind.key_dim // shape[1]
        shape = (groups, shape[0] // groups, shape[1])
    stem, dot, ending = name.rpartition(".")
    parts = stem.split("+")
    if len(parts) == 1:
        yield name, shape
        return
    rows = next(place for place, length in enumerate(shape) if length > 1)
    cut = (*shape[:rows], shape[rows] // len(parts), *shape[rows + 1 :])
    yield from ((part + dot + ending, cut) for part in parts)


def _state_shape(
    tensor: ExpectedTensor, shape: tuple[int, ...], kind: Recurrent
) -> tuple[int, ...]:
    """Shapes of recurrent tensors: Mamba-2 vectors have one column and its norm is grouped; Kimi's have four
    dimensions.
    """
    if kind.cell is Cell.MAMBA2 and kind.groups:
        if tensor.role in {TensorRole.STATE_A, TensorRole.STATE_D}:
            return (*shape, 1)
        if tensor.role is TensorRole.STATE_NORM:
            return (kind.groups, shape[0] // kind.groups)
    if kind.cell is Cell.KIMI_DELTA:
        if tensor.role is TensorRole.STATE_A:
            return (1, 1, *shape, 1)
        if tensor.role is TensorRole.CONV:
            return (1, shape[0], 1, shape[1])
    return shape


def _fused(tensors: Sequence[GgufTensor], parts: Sequence[str], whole: str) -> list[GgufTensor]:
    """Concatenates the rows of the matrices, and their biases."""
    fused: list[GgufTensor] = []
    for ending in (".weight", ".bias"):
        names = {part + ending for part in parts}
        own = [one for one in tensors if one.name in names]
        if own:
            first = own[0]
            axis = 0 if len(first.shape) < 3 else 1  # experts come first
            rows = sum(one.shape[axis] for one in own)
            shape = (*first.shape[:axis], rows, *first.shape[axis + 1 :])
            fused.append(GgufTensor(name=whole + ending, shape=shape, type=first.type))
            tensors = [one for one in tensors if one.name not in names]
    return [*tensors, *fused]


def _recurrence(kind: LayerKind | None) -> Recurrent | None:
    if isinstance(kind, HybridLayer):
        return kind.recurrent
    return kind if isinstance(kind, Recurrent) else None
