"""The tensors of a GGUF and a mix's name -> the type and size each would have: "what would this be at Q4_K_M?".

llama.cpp's own choice (src/llama-quant.cpp @ 0c1e570), without running it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from edgekit.engines.llamacpp.architectures import conversion, known_architecture
from edgekit.engines.llamacpp.quantize.table import (
    BY_NAME,
    KEPT_NAMES,
    KEPT_PARTS,
    STAND_INS,
    MixFacts,
    MixRow,
    TensorCategory,
    TensorPlace,
)
from edgekit.errors import RefusedError, UsageError
from edgekit.formats.dtype import TensorType, by_name
from edgekit.formats.types import GgufTensor, ModelHeader
from edgekit.model.types import (
    Attention,
    LatentAttention,
    ModelGeometry,
    NoCache,
    SharedCache,
)
from edgekit.sources.filenames import SHORT_MIXES
from edgekit.terminal import unquoted


def mix_tensors(
    tensors: Iterable[GgufTensor], mix: str, model: MixFacts, *, imatrix: bool | None = None
) -> tuple[GgufTensor, ...]:
    """The same tensors at that mix. `imatrix`: made with an importance matrix; None: where it must be."""
    return mix_met(in_order(tensors), mix, model, imatrix=imatrix)


class Met(NamedTuple):
    """A tensor as llama-quantize meets it, whatever the mix."""

    tensor: GgufTensor
    block: int
    kind: TensorCategory
    is_quantised: bool


def in_order(tensors: Iterable[GgufTensor]) -> tuple[Met, ...]:
    """Block by block. What a tensor is depends on its shape and on its name behind the block: worked out once."""
    known: dict[tuple[str, tuple[int, ...]], tuple[TensorCategory, bool]] = {}
    met = []
    for one in tensors:
        block, own_name = _block(one.name)
        what = known.get((own_name, one.shape))
        if what is None:
            what = known[own_name, one.shape] = kind_of(one.name), _is_quantised(one)
        met.append(Met(one, block, *what))
    return tuple(sorted(met, key=lambda one: (one.block, one.tensor.name)))


def mix_met(
    met: Sequence[Met], mix: str, model: MixFacts, *, imatrix: bool | None = None
) -> tuple[GgufTensor, ...]:
    """`mix_tensors` of tensors that are in order."""
    row = mix_row(mix)
    used = row.needs_imatrix if imatrix is None else imatrix
    values = sum(one.kind is TensorCategory.VALUE for one in met)
    chooser = _Chooser(row, model, imatrix=used, values=values)
    return tuple(chooser.mixed(one) for one in met)


def mix_row(mix: str) -> MixRow:
    """The row of that name, or of its short form (Q4_K is Q4_K_M)."""
    name = mix.upper()
    row = BY_NAME.get(SHORT_MIXES.get(name, name))
    if row is None:
        raise UsageError(f"unknown quantisation {mix[:40]!r}; choose one of {', '.join(BY_NAME)}")
    return row


def facts_of_header(header: ModelHeader) -> MixFacts:
    """From the keys of a GGUF, as the loader would read them."""
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
    """The same before there is a GGUF; `architecture` is the name it would have."""
    heads, kv_heads = _group_of(geometry)
    layers = len(geometry.layers) // geometry.loops
    return MixFacts(
        architecture=architecture,
        layers=layers,
        experts=max((x.experts.count for x in geometry.layers if x.experts), default=0),
        group=heads // kv_heads if kv_heads else 0,
        seventy=_is_seventy(architecture, layers, alone=heads == kv_heads),
        tied=bool(geometry.tied_embeddings),
    )


def laid_tensors(header: ModelHeader) -> tuple[GgufTensor, ...]:
    """The directory of a GGUF. UsageError when it was not read, or is none."""
    if header.tensors is None or not header.keys:
        raise UsageError(f"{header.name}: needs a GGUF file with its whole header")
    return tuple(
        GgufTensor(name=tensor.name, shape=tensor.shape or (1,), type=tensor.type)
        for tensor in header.tensors
    )


class _Chooser:
    """Counts tensors as llama-quantize meets them: later ones may get fewer bits."""

    def __init__(self, row: MixRow, model: MixFacts, *, imatrix: bool, values: int) -> None:
        self.row, self.model, self.imatrix, self.values = row, model, imatrix, values
        self.met = dict.fromkeys(TensorCategory, 0)
        self.base = by_name(row.base)

    def mixed(self, met: Met) -> GgufTensor:
        if not met.is_quantised:
            return met.tensor
        chosen = self.base if self.base.block_elements == 1 else self._chosen(met)
        return GgufTensor(name=met.tensor.name, shape=met.tensor.shape, type=chosen)

    def _chosen(self, met: Met) -> TensorType:
        tensor, kind = met.tensor, met.kind
        if kind is TensorCategory.OUTPUT or (kind is TensorCategory.EMBEDDING and self.model.tied):
            name = self._output(tensor)
        elif self.row.name == "MXFP4_MOE":
            name = "MXFP4" if len(_dimensions(tensor)) > 2 else "Q8_0"
        elif kind is TensorCategory.EMBEDDING:
            name = self.row.embedding or self.row.base
        else:
            name = self._in_layer(met)
        return _fitting(name, tensor)

    def _output(self, tensor: GgufTensor) -> str:
        uneven = tensor.shape[-1] % self.base.block_elements
        return "Q8_0" if uneven or self.model.architecture == "falcon" else self.row.output

    def _in_layer(self, met: Met) -> str:
        kind, chosen = met.kind, self.row.base
        if cases := self.row.cases(kind):
            place = self._place(met)
            chosen = next((type_ for when, type_ in cases if when(place)), "") or chosen
        self.met[kind] += 1
        return (
            self._raised(chosen)
            if kind is TensorCategory.VALUE and self.row.raises_values
            else chosen
        )

    def _place(self, met: Met) -> TensorPlace:
        kind = met.kind
        of = self.values if kind is TensorCategory.VALUE else self.model.layers
        by_layer = self.model.experts > 1 and kind in {
            TensorCategory.DOWN,
            TensorCategory.GATE,
            TensorCategory.UP,
        }
        index = self.met[kind]
        if by_layer and not (kind is TensorCategory.DOWN and self.row.down_by_count):
            index = met.block
        return TensorPlace(index=index, of=of, model=self.model, imatrix=self.imatrix)

    def _raised(self, chosen: str) -> str:
        if self.model.experts == 8:
            return "Q8_0"
        return "Q5_K" if self.model.seventy and chosen in {"Q3_K", "Q4_K"} else chosen


def kind_of(name: str) -> TensorCategory:
    return next(
        (kind for part, kind in _PARTS if part in name), _NAMES.get(name, TensorCategory.OTHER)
    )


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


def _block(name: str) -> tuple[int, str]:
    """Its number, or -1; and the name from the dot behind it on."""
    found = _BLOCK.match(name)
    return (int(found[1]), name[found.end() - 1 :]) if found else (-1, name)


def _is_quantised(tensor: GgufTensor) -> bool:
    name = tensor.name
    return (
        len(_dimensions(tensor)) > 1
        and name.endswith("weight")
        and name not in KEPT_NAMES
        and _KEPT.search(name) is None
    )


def _dimensions(tensor: GgufTensor) -> tuple[int, ...]:
    """Without the outermost ones of length 1, as ggml counts them."""
    shape = tensor.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _fitting(name: str, tensor: GgufTensor) -> TensorType:
    """The type itself, or what stands in for it when its blocks do not divide a row."""
    wanted, row = by_name(name), tensor.shape[-1]
    if row % wanted.block_elements == 0:
        return wanted
    if name not in STAND_INS and wanted.block_elements > 32:
        raise RefusedError(
            f"llama-quantize has no fallback for {name} in {unquoted(tensor.name)}: rows "
            f"of {row:,} are not a multiple of {wanted.block_elements}"
        )
    stand_in = by_name(STAND_INS.get(name, name))
    return by_name("F16") if row % stand_in.block_elements else stand_in


def _is_seventy(architecture: str, layers: int, *, alone: bool) -> bool:
    seventy = 0 < layers == known_architecture(architecture).layers_of_70b
    return seventy and not (architecture == "llama" and alone)


def _first(header: ModelHeader, key: str) -> int | None:
    """A number, or that of layer 0."""
    value = header.keys.get(key)
    if isinstance(value, tuple):
        value = value[0] if value else None
    return value if isinstance(value, int) else None


def _group_of(geometry: ModelGeometry) -> tuple[int, int]:
    """Heads and KV heads of layer 0 as a GGUF states them: one for MLA, none for a recurrence that has a list."""
    for layer in geometry.layers[: 1 if conversion(geometry.architecture).lists_kv_heads else None]:
        kind = layer.mixer
        if isinstance(kind, (SharedCache, NoCache)):
            kind = kind.attention or kind
        if isinstance(kind, LatentAttention):
            return kind.heads, 1 if kind.absorbed else kind.heads
        if isinstance(kind, Attention):
            return kind.heads, kind.kv_heads
    return 0, 0
