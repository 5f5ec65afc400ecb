"""llama-quantize: the tensors of a GGUF and a mix -> the type of each tensor.

Reproduces src/llama-quant.cpp @ 0c1e570 without running it. The mixes are the "llamacpp" sections of
formats/mixes.json: a list of cases per tensor category; the first case that holds applies, otherwise the mix's base
type. A case is the names of its conditions, then a type; "" keeps the mix's own.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from edgekit.bill.types import Component, MemoryLine, no_better_than, weakest
from edgekit.engines.llamacpp.architectures import conversion_of, known_architecture
from edgekit.engines.llamacpp.types import Backend
from edgekit.errors import RefusedError, UsageError, unquoted
from edgekit.formats.dtype import TensorType, by_name
from edgekit.formats.mixes import DynamicMix, dynamic_mix, mix_records
from edgekit.formats.records import read_fields
from edgekit.formats.types import GgufTensor, ModelHeader
from edgekit.machine.types import DEVICE, HOST
from edgekit.model.types import (
    Attention,
    LatentAttention,
    Model,
    ModelGeometry,
    NoCache,
    SharedCache,
)
from edgekit.sources.quants import SHORT_MIXES
from edgekit.units import Basis

# -- mixes --------------------------------------------------------------------------------------


class TensorCategory(enum.Enum):
    """llama.cpp's categories of tensors. Fused QKV and MLA's kv_b count as V."""

    OUTPUT = "output"
    EMBEDDING = "token embedding"
    VALUE = "values"
    KEY = "keys"
    QUERY = "queries"
    ATTENTION_OUT = "attention output"
    UP = "up"
    GATE = "gate"
    DOWN = "down"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixFacts:
    """Facts of a model that the choice depends on."""

    architecture: str  # its GGUF name
    layers: int  # including prediction blocks
    experts: int = 0
    group: int = 1  # heads per KV head in layer 0; 0: no heads
    seventy: bool = False  # llama.cpp calls it a "70B"
    tied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """A tensor's position within its category."""

    index: int
    of: int
    model: MixFacts
    imatrix: bool = False  # made with an importance matrix


Condition = Callable[[TensorPlace], bool]


def _has_more_bits(place: TensorPlace) -> bool:
    """True for the first and the last eighth of the tensors, and for every third one between them."""
    start = place.of // 8
    return place.index < start or place.index >= 7 * place.of // 8 or (place.index - start) % 3 == 2


CONDITIONS: Mapping[str, Condition] = {
    "falcon": lambda place: place.model.architecture == "falcon",
    "grouped": lambda place: place.model.group >= 4,
    "grouped_or_routed": lambda place: place.model.group >= 4 or place.model.experts >= 4,
    # Mixtral: attention is small compared with the experts, so more bits cost little.
    "eight_experts": lambda place: place.model.experts == 8,
    "imatrix": lambda place: place.imatrix,
    "no_imatrix": lambda place: not place.imatrix,
    "more_bits": _has_more_bits,
    "fewer_bits": lambda place: not _has_more_bits(place),
    "middle": lambda place: place.of // 8 <= place.index < 7 * place.of // 8,
    "first_two": lambda place: place.index < 2,
    "first_four": lambda place: place.index < 4,
    "first_eighth": lambda place: place.index < place.of // 8,
    "first_sixteenth": lambda place: place.index < place.of // 16,
}


# Pairs of conditions and the type if all of them hold; an empty type means the base type of the mix.
Cases = tuple[tuple[tuple[Condition, ...], str], ...]


def _cases(rows: Sequence[Sequence[str]]) -> Cases:
    """Reads rows of mixes.json: names of conditions, then the type."""
    return tuple((tuple(CONDITIONS[name] for name in names), type_) for *names, type_ in rows)


_EIGHT_BIT_KEYS = _cases([["eight_experts", "Q8_0"]])


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRow:
    name: str
    base: str  # the type if no case applies
    output: str = "Q6_K"
    embedding: str = ""
    value: Cases = ()
    key: Cases = _EIGHT_BIT_KEYS
    query: Cases = ()
    out: Cases = ()
    down: Cases = ()
    gate_up: Cases = ()
    down_by_count: bool = False  # counts down matrices in file order, not by layer
    needs_imatrix: bool = False  # llama-quantize refuses to make it without one
    raises_values: bool = True  # more bits for values of Mixtral and of the 70B

    def cases(self, kind: TensorCategory) -> Cases:
        """The cases for tensors of this category, in order of precedence."""
        cases_by_category = {
            TensorCategory.VALUE: self.value,
            TensorCategory.KEY: self.key,
            TensorCategory.QUERY: self.query,
            TensorCategory.ATTENTION_OUT: self.out,
            TensorCategory.DOWN: self.down,
            TensorCategory.GATE: self.gate_up,
            TensorCategory.UP: self.gate_up,
        }
        return cases_by_category.get(kind, ())


@cache
def mix_rows() -> Mapping[str, MixRow]:
    """The mixes that llama-quantize supports, by name."""
    rows = {}
    for record in mix_records():
        if "llamacpp" in record:
            name = record["name"]
            fields = {"name": name, "base": name, **record["llamacpp"]}
            rows[name] = read_fields(MixRow, fields, {"Cases": _cases}, where=f"mixes.json, {name}")
    return rows


def mix_row(mix: str) -> MixRow:
    """The row of that name, or of its short form (Q4_K is Q4_K_M)."""
    name = mix.upper()
    row = mix_rows().get(SHORT_MIXES.get(name, name))
    if row is None:
        names = ", ".join(mix_rows())
        raise UsageError(f"unknown quantisation {mix[:40]!r}; choose one of {names}")
    return row


# The fallback if the block size does not divide a row (tensor_type_fallback).
FALLBACKS = {
    **dict.fromkeys(
        ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"
    ),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}

# fmt: off
_TIME_MIX = ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2", "decay_w1", "decay_w2",
             "lerp_fused")
# fmt: on
# Tensors with these in their names are not quantised (tensor_allows_quantization).
KEPT_PARTS = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    *(f"time_mix_{part}.weight" for part in _TIME_MIX),
    "attn_rel_b.weight",
    ".position_embd",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
)
KEPT_NAMES = frozenset({"position_embd.weight", "token_types.weight"})
MXFP4_MIX = "MXFP4_MOE"
EXPERT_TYPE = "MXFP4"  # of that mix; its other tensors are Q8_0


# -- choosing -----------------------------------------------------------------------------------


class SourceTensor(NamedTuple):
    """An input tensor of llama-quantize with its category, for any mix."""

    tensor: GgufTensor
    block: int
    kind: TensorCategory
    is_quantised: bool


def in_order(tensors: Iterable[GgufTensor]) -> tuple[SourceTensor, ...]:
    """The tensors block by block, as llama-quantize reads them."""
    # The category depends only on the name within the block and on the shape.
    categories: dict[tuple[str, tuple[int, ...]], tuple[TensorCategory, bool]] = {}
    sources = []
    for tensor in tensors:
        name, block = tensor.name, _BLOCK.match(tensor.name)
        key = (name[block.end() - 1 :] if block else name, tensor.shape)
        if key not in categories:
            kinds = (kind for part, kind in _PARTS if part in name)
            is_quantised = (
                len(_dimensions(tensor)) > 1
                and name.endswith("weight")
                and name not in KEPT_NAMES
                and _KEPT.search(name) is None
            )
            categories[key] = next(kinds, _NAMES.get(name, TensorCategory.OTHER)), is_quantised
        sources.append(SourceTensor(tensor, int(block[1]) if block else -1, *categories[key]))
    return tuple(sorted(sources, key=lambda source: (source.block, source.tensor.name)))


def quantize(
    tensors: Sequence[SourceTensor], mix: str, model: MixFacts, *, imatrix: bool | None = None
) -> tuple[GgufTensor, ...]:
    """The tensors at this mix. `imatrix`: quantised with an importance matrix; None: only if required."""
    row = mix_row(mix)
    base = by_name(row.base)
    with_imatrix = row.needs_imatrix if imatrix is None else imatrix
    # Categories whose tensors a model with experts counts by block, others in file order.
    counted_by_block = {TensorCategory.GATE, TensorCategory.UP}
    if not row.down_by_count:
        counted_by_block.add(TensorCategory.DOWN)
    values = sum(source.kind is TensorCategory.VALUE for source in tensors)
    counts = dict.fromkeys(TensorCategory, 0)  # earlier tensors of each category
    mixed = []
    for source in tensors:
        tensor, kind = source.tensor, source.kind
        if source.is_quantised:
            type_ = base
            if base.block_elements > 1:
                is_by_block = model.experts > 1 and kind in counted_by_block
                place = TensorPlace(
                    index=source.block if is_by_block else counts[kind],
                    of=values if kind is TensorCategory.VALUE else model.layers,
                    model=model,
                    imatrix=with_imatrix,
                )
                counts[kind] += 1
                type_ = _fitting_type(_mixed_type(row, source, place, base), tensor)
            tensor = GgufTensor(name=tensor.name, shape=tensor.shape, type=type_)
        mixed.append(tensor)
    return tuple(mixed)


def _mixed_type(row: MixRow, source: SourceTensor, place: TensorPlace, base: TensorType) -> str:
    """The type that a mix gives a tensor at this place, before any fallback (llama_tensor_get_type_impl)."""
    tensor, kind, model = source.tensor, source.kind, place.model
    if kind is TensorCategory.OUTPUT or (kind is TensorCategory.EMBEDDING and model.tied):
        uneven = tensor.shape[-1] % base.block_elements
        return "Q8_0" if uneven or model.architecture == "falcon" else row.output
    if row.name == MXFP4_MIX:
        return EXPERT_TYPE if len(_dimensions(tensor)) > 2 else "Q8_0"
    if kind is TensorCategory.EMBEDDING:
        return row.embedding or row.base
    matches = (
        type_ for conditions, type_ in row.cases(kind) if all(holds(place) for holds in conditions)
    )
    chosen = next(matches, "") or row.base
    if kind is TensorCategory.VALUE and row.raises_values:
        if model.experts == 8:
            return "Q8_0"
        if model.seventy and chosen in {"Q3_K", "Q4_K"}:
            return "Q5_K"
    return chosen


_NAMES = {
    "output.weight": TensorCategory.OUTPUT,
    "token_embd.weight": TensorCategory.EMBEDDING,
    "per_layer_token_embd.weight": TensorCategory.EMBEDDING,
}
_PARTS = (
    ("attn_qkv.weight", TensorCategory.VALUE),
    ("attn_kv_b.weight", TensorCategory.VALUE),
    ("attn_v.weight", TensorCategory.VALUE),
    ("attn_k.weight", TensorCategory.KEY),
    ("attn_q.weight", TensorCategory.QUERY),
    ("attn_output.weight", TensorCategory.ATTENTION_OUT),
    ("ffn_up", TensorCategory.UP),
    ("ffn_gate", TensorCategory.GATE),
    ("ffn_down", TensorCategory.DOWN),
)
_KEPT = re.compile("|".join(map(re.escape, KEPT_PARTS)))
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


def _dimensions(tensor: GgufTensor) -> tuple[int, ...]:
    """The shape without outer dimensions of length 1, as ggml counts dimensions."""
    shape = tensor.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _fitting_type(name: str, tensor: GgufTensor) -> TensorType:
    """The type, or its fallback if its blocks do not divide a row."""
    kind, row = by_name(name), tensor.shape[-1]
    if row % kind.block_elements == 0:
        return kind
    if name not in FALLBACKS and kind.block_elements > 32:
        raise RefusedError(
            f"llama-quantize has no fallback for {name} in {unquoted(tensor.name)}: rows "
            f"of {row:,} are not a multiple of {kind.block_elements}"
        )
    fallback = by_name(FALLBACKS.get(name, name))
    return by_name("F16") if row % fallback.block_elements else fallback


# -- models -------------------------------------------------------------------------------------


def facts_of_header(header: ModelHeader) -> MixFacts:
    """Facts from the keys of a GGUF, as the loader reads them."""
    architecture = str(header.keys.get("general.architecture", ""))
    heads = _first(header, f"{architecture}.attention.head_count") or 0
    kv_heads = _first(header, f"{architecture}.attention.head_count_kv")
    layers = _first(header, f"{architecture}.block_count") or 0
    shared = heads if kv_heads is None else kv_heads
    return MixFacts(
        architecture=architecture,
        layers=layers,
        experts=_first(header, f"{architecture}.expert_count") or 0,
        group=heads // shared if shared else 0,
        seventy=_is_seventy(architecture, layers, alone=heads == shared),
        tied=all(tensor.name != "output.weight" for tensor in header.tensors or ()),
    )


def facts_of_geometry(geometry: ModelGeometry, architecture: str) -> MixFacts:
    """Facts from the geometry, before there is a GGUF; `architecture`: its GGUF name."""
    heads, kv_heads = _group_of(geometry)
    layers = len(geometry.layers) // geometry.loops
    return MixFacts(
        architecture=architecture,
        layers=layers,
        experts=max((layer.experts.count for layer in geometry.layers if layer.experts), default=0),
        group=heads // kv_heads if kv_heads else 0,
        seventy=_is_seventy(architecture, layers, alone=heads == kv_heads),
        tied=bool(geometry.tied_embeddings),
    )


def directory_tensors(header: ModelHeader) -> tuple[GgufTensor, ...]:
    """The tensors of a GGUF. Raises UsageError if its header was not read to the end, or it is another format."""
    if header.tensors is None or not header.keys:
        raise UsageError(f"{header.name}: needs a GGUF file with its whole header")
    return tuple(
        GgufTensor(name=tensor.name, shape=tensor.shape or (1,), type=tensor.type)
        for tensor in header.tensors
    )


def _is_seventy(architecture: str, layers: int, *, alone: bool) -> bool:
    """True if llama.cpp labels the model "70B". `alone`: each head has its own KV head."""
    seventy = 0 < layers == known_architecture(architecture).layers_of_70b
    return seventy and not (architecture == "llama" and alone)


def _first(header: ModelHeader, key: str) -> int | None:
    """The key's number, or its first element if it is a list by layer."""
    value = header.keys.get(key)
    if isinstance(value, tuple):
        value = value[0] if value else None
    return value if isinstance(value, int) else None


def _group_of(geometry: ModelGeometry) -> tuple[int, int]:
    """Heads and KV heads as a GGUF states them: of layer 0 if it lists them by layer, else of the first layer with
    attention. MLA counts one KV head.
    """
    layers = geometry.layers
    if conversion_of(geometry.architecture).lists_kv_heads:
        layers = layers[:1]
    for layer in layers:
        kind = layer.mixer
        if isinstance(kind, (SharedCache, NoCache)):
            kind = kind.attention or kind
        if isinstance(kind, LatentAttention):
            return kind.heads, 1 if kind.absorbed else kind.heads
        if isinstance(kind, Attention):
            return kind.heads, kind.kv_heads
    return 0, 0


WITHIN = 0.005  # from a config only: rope tables, and tensors that a converter adds or drops
# With experts that stay as released: two makers' files of gpt-oss-20b are up to 1.6 % larger than ours.
KEPT_WITHIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedModel:
    mix: str
    tensors: tuple[GgufTensor, ...] = field(repr=False)
    basis: Basis  # of the tensors
    because: str = ""
    within: float = WITHIN  # the error bound of the weights if they are MODELLED
    dynamic: DynamicMix | None = None  # then the tensors are those of the mix like it

    @property
    def tensor_bytes(self) -> int:
        size = sum(tensor.size_bytes for tensor in self.tensors)
        return size if self.dynamic is None else round(size * self.dynamic.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """The input of llama-quantize, for any mix."""

    tensors: tuple[SourceTensor, ...] = field(repr=False)
    facts: MixFacts
    basis: Basis
    because: str  # with a placeholder for the name of the mix
    keeps_experts: bool = False  # it was released with experts in MXFP4

    def at_mix(self, mix: str, *, imatrix: bool | None = None) -> MixedModel:
        """The model at a mix. UsageError for an unknown mix, RefusedError where llama-quantize fails.

        Experts that were released in MXFP4 stay MXFP4 in published quantisations: llama-quantize does not quantise
        them a second time. The types of the other tensors differ a little from maker to maker.
        """
        dynamic = dynamic_mix(mix, MXFP4_MIX if self.keeps_experts else "")
        if dynamic is not None:
            like = self.at_mix(dynamic.like, imatrix=imatrix)
            return replace(like, mix=dynamic.name, dynamic=dynamic, because=dynamic.because)
        name = mix_row(mix).name
        mixed = quantize(self.tensors, name, self.facts, imatrix=imatrix)
        because = self.because.format(name)
        if not self.keeps_experts or name == MXFP4_MIX:
            return MixedModel(mix=name, tensors=mixed, basis=self.basis, because=because)
        return MixedModel(
            mix=name,
            tensors=tuple(
                source.tensor if source.tensor.type.name == EXPERT_TYPE else tensor
                for source, tensor in zip(self.tensors, mixed, strict=True)
            ),
            basis=weakest((self.basis, Basis.MODELLED)),
            because=f"{because}; experts stay {EXPERT_TYPE}, as released",
            within=KEPT_WITHIN,
        )


# Equal on all 43 recorded models compared; other families may have keys that conversion.py does not write.
COMPUTE_WITHIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The converted model, and how well it is known."""

    model: Model
    mixed: MixedModel
    file_bytes: int | None = None  # of a GGUF without tensor directory

    @property
    def note(self) -> str:
        if self.file_bytes is not None:
            return f"computed as {self.mixed.mix}, from the header keys and the file size"
        if self.mixed.dynamic is not None:
            return self.mixed.because
        return f"sizes computed for a {self.mixed.mix} GGUF: {self.mixed.because}"

    def known(self, line: MemoryLine) -> MemoryLine:
        """The line, at most as certain as the conversion and the layers that tensors were derived from."""
        mixed = self.mixed
        if line.component is Component.WEIGHTS:
            line = replace(line, because=f"{line.because} ({mixed.mix})")
            if mixed.dynamic is not None and self.file_bytes is None:
                because = f"{line.because}; {mixed.dynamic.because}"
                size = round(line.size_bytes * mixed.dynamic.usual)
                return no_better_than(
                    replace(line, size_bytes=size, because=because), Basis.ASSUMED
                )
        if mixed.basis is Basis.EXACT:
            return line
        if line.basis is Basis.EXACT:
            within = COMPUTE_WITHIN if line.component is Component.COMPUTE else mixed.within
            line = replace(line, basis=mixed.basis, within=within)
        return no_better_than(line, self.model.geometry.basis, WITHIN)

    def unexplained(self, backend: Backend) -> tuple[MemoryLine, ...]:
        """A line for the bytes by which the file is larger than its mix: a long header, or tensors of larger types."""
        if self.file_bytes is None:
            return ()
        extra_bytes = self.file_bytes - sum(tensor.size_bytes for tensor in self.mixed.tensors)
        if extra_bytes <= 0:
            return ()
        line = MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=extra_bytes,
            pool=HOST if backend is Backend.CPU else DEVICE,
            basis=Basis.MODELLED,
            because=(
                f"difference between the file size and a {self.mixed.mix} of these layers: "
                "header or other tensor types"
            ),
            within=1.0,
        )
        if self.mixed.basis is not Basis.EXACT:
            line = no_better_than(line, self.model.geometry.basis, WITHIN)
        return (line,)
