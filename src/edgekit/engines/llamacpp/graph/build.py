"""A graph under construction: the model's hyper-parameters and weights, the load's sizes, and the graph's inputs.

Names and defaults are llama.cpp's: llama-model.cpp (load_hparams), llama-hparams.cpp and llama-graph.cpp @ 0c1e570.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.tensor import (
    F32,
    I32,
    I64,
    Dim,
    Graph,
    GraphTensor,
    Home,
    MissingTensorError,
    NoGraphError,
    Size,
    shape,
)
from edgekit.engines.llamacpp.types import Rules
from edgekit.errors import HeaderError
from edgekit.formats.dtype import TensorType
from edgekit.formats.types import Tensor, Value
from edgekit.model.hyperparameters import GgufKeys
from edgekit.model.types import HybridLayer, Model, Recurrent, Span, attention_of

MAX_EXPERTS = 1024  # llama-hparams.h: LLAMA_MAX_EXPERTS; Kimi K3 has 896

# Name within a layer -> shape, innermost first.
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """Everything that a layer's graph depends on: layers with equal facts have equal graphs."""

    n_head: int
    n_head_kv: int
    n_embd_head_k: int
    n_embd_head_v: int
    n_expert_used: int
    is_swa: bool
    is_recr: bool
    has_kv: bool
    is_last: bool
    shapes: Shapes = field(repr=False)
    variant: Hashable = None  # what else distinguishes layers of this graph family


class Hparams:
    """A model's hyper-parameters. The types of the layers come from its geometry."""

    def __init__(self, model: Model) -> None:
        self.header, self.geometry = model.header, model.geometry
        self.arch = model.geometry.architecture
        self.keys = GgufKeys(self.header.keys, self.arch, self.header.name)
        self.n_layer = len(model.geometry.layers)
        self.n_block = self.n_layer // model.geometry.loops  # blocks with weights
        self.n_embd = self.integer("embedding_length")
        self.n_head_arr = self.per_layer("attention.head_count", 0)
        self.n_head_kv_arr = self.per_layer("attention.head_count_kv", self.n_head_arr)
        self.n_expert = self.integer("expert_count", 0)
        self.n_expert_used_arr = self.per_layer("expert_used_count", 0)
        if not max(self.n_expert_used_arr) <= self.n_expert <= MAX_EXPERTS:
            raise NoGraphError(f"{self.header.name}: llama.cpp has at most {MAX_EXPERTS} experts")
        head_width = self.n_embd // self.n_head_arr[0] if self.n_head_arr[0] else 0
        self.n_embd_head_k_full = self.integer("attention.key_length", head_width)
        self.n_embd_head_v_full = self.integer("attention.value_length", head_width)
        self.n_rot_full = self.integer("rope.dimension_count", self.n_embd_head_k_full)
        attentions = [attention_of(layer.mixer) for layer in model.geometry.layers]
        self.swa = tuple(
            attention is not None and attention.span is not Span.ALL for attention in attentions
        )
        self.globals, self.by_layer = _directory(self.header.tensors or ())
        # Multi-token prediction blocks are not loaded.
        in_layers = (len(names) for il, names in self.by_layer.items() if il < self.n_layer)
        self.n_tensors = len(self.globals) + sum(in_layers)
        self.n_embd_v_gqa_max = max(
            heads * self.head_dim("v", il) for il, heads in enumerate(self.n_head_kv_arr)
        )

    def key(self, name: str) -> Value | None:
        return self.keys.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer key; the value of layer 0 if it is a per-layer list. Raises NoGraphError."""
        try:
            return self.keys.whole(name, default=default)
        except HeaderError as error:
            raise NoGraphError(str(error)) from error

    def real(self, name: str, default: float = 0.0) -> float:
        value = self.key(name)
        return float(value) if isinstance(value, (int, float)) else default

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.key(name)
        return default if value is None else bool(value)

    def per_layer(self, name: str, default: int | tuple[int, ...]) -> tuple[int, ...]:
        """One value per layer, repeated for every loop over the blocks. Raises NoGraphError."""
        try:
            numbers = self.keys.per_layer(name, self.n_block, default=default)
        except HeaderError as error:
            raise NoGraphError(str(error)) from error
        return numbers * self.geometry.loops

    def block_of(self, il: int) -> int:
        """The block whose weights layer `il` runs."""
        if self.arch == "hrm_text":
            size, low_runs = self.integer("hrm.layers_per_stack"), self.integer("hrm.l_cycles")
            is_high = il // size % (low_runs + 1) == low_runs
            return il % size + (size if is_high else 0)
        return il % self.n_block

    def weights(self, il: int) -> dict[str, Tensor]:
        """The weights of the block that layer `il` runs."""
        return self.by_layer.get(self.block_of(il), {})

    @property
    def has_swa(self) -> bool:
        """True if swa_type is set: sliding-window layers then have a separate cache."""
        return any(self.swa)

    def head_dim(self, side: str, il: int) -> int:
        """Head width of K ("k") or V ("v") in that layer; sliding-window layers may differ."""
        full = self.n_embd_head_k_full if side == "k" else self.n_embd_head_v_full
        name = "key" if side == "k" else "value"
        return self.integer(f"attention.{name}_length_swa", full) if self.swa[il] else full

    def cached_heads(self, side: str, *, swa: bool | None) -> set[int]:
        """Head widths in a cache. `swa`: only of sliding-window layers, or only of the others; None: of all layers."""
        return {
            self.head_dim(side, il)
            for il in range(self.n_layer)
            if self.has_kv(il) and (swa is None or self.swa[il] == swa)
        }

    def varies(self, side: str) -> bool:
        """is_n_embd_k_gqa_variable: layers differ in the width of K or V; layers without attention count as well."""
        widths = {n * self.head_dim(side, il) for il, n in enumerate(self.n_head_kv_arr)}
        return len(widths) > 1

    def has_kv(self, il: int) -> bool:
        return bool(self.geometry.layers[il].mixer.streams)

    def is_recr(self, il: int) -> bool:
        return isinstance(self.geometry.layers[il].mixer, (Recurrent, HybridLayer))

    def layer(self, il: int, variant: Hashable = None) -> LayerFacts:
        """The facts of layer `il`. `variant`: what its graph family adds."""
        return LayerFacts(
            n_head=self.n_head_arr[il],
            n_head_kv=self.n_head_kv_arr[il],
            n_embd_head_k=self.head_dim("k", il),
            n_embd_head_v=self.head_dim("v", il),
            n_expert_used=self.n_expert_used_arr[il],
            is_swa=self.swa[il],
            is_recr=self.is_recr(il),
            has_kv=self.has_kv(il),
            is_last=il == self.n_layer - 1,
            shapes=tuple((name, tensor.shape[::-1]) for name, tensor in self.weights(il).items()),
            variant=variant,
        )


def _directory(
    tensors: tuple[Tensor, ...],
) -> tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]:
    """Tensors outside the layers by name; tensors of the layers by layer number and name."""
    outside: dict[str, Tensor] = {}
    layers: dict[int, dict[str, Tensor]] = {}
    for tensor in tensors:
        block, _, rest = tensor.name.partition(".")
        number, _, name = rest.partition(".")
        if block == "blk" and number.isdecimal():
            layers.setdefault(int(number), {})[name] = tensor
        else:
            outside[tensor.name] = tensor
    return outside, layers


MAX_NODES = 65_536  # DeepSeek-V3's has 7,000


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """The sizes that llama_context reserves a graph for, as numbers or polynomials."""

    n_tokens: Size
    n_seqs: Size
    n_outputs: Size
    n_kv: Size
    n_kv_swa: Size
    n_stream: Size  # 1 or n_seqs

    @property
    def n_seq_tokens(self) -> Size:
        return self.n_tokens // self.n_seqs


# Image embeddings are already scaled: only token embeddings are multiplied by the constant.
SCALED_IMAGES = frozenset({"gemma-embedding", "gemma-embedding2", "gemma3", "gemma3n", "gemma4"})
# The first build of each architecture in which multi-token prediction blocks read the last state of every token
# (t_h_nextn; grep embeddings_nextn_masked in src/models).
PREDICTS_SINCE = {
    "qwen35": 9200,
    "qwen35moe": 9200,
    "step35": 9480,
    "gemma4": 9549,
    "gpt-oss": 10158,
    "glm-dsa": 10174,
    "mimo2": 10184,
    "deepseek32": 10237,
    "qwen3next": 10238,
    "deepseek2": 10251,
    "nemotron_h": 10344,
    "nemotron_h_moe": 10344,
    "glm4moe": 10809,
}
# llama-arch.cpp @ b11549: llm_arch_supports_mixed_batch. Their batches hold either tokens or embeddings.
UNMIXED = frozenset(
    {"cogvlm", "deepseek4", "dflash", "eagle3", "gemma4-assistant", "graniteswitch"}
)


class StateInput(NamedTuple):
    """Indices of state rows. `main`: of the sequences in the batch; `extra`: of the others, which are only copied."""

    copy: GraphTensor
    main: GraphTensor
    extra: GraphTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """Options that change which nodes the graph has, not only their sizes."""

    flash_attn: bool
    v_trans: bool  # each row of the V cache holds one channel of all tokens
    type_k: TensorType
    type_v: TensorType
    embeddings: bool
    streams: bool  # each sequence has its own cache
    divided: bool = False  # the host has layers, and devices have others or the output
    rules: int  # a build of llama.cpp (Rules)


class Act(enum.Enum):
    """The activation of a feed-forward, as far as it decides which nodes the graph has."""

    UNARY = "silu, gelu or relu, times up where there is a gate"
    SQUARED = "relu, then its square"
    FUSED = "gate and up are halves of one product"
    CLAMPED = "silu and up are clamped before they are multiplied"
    SITU = "two tanh and a sigmoid"


class Gating(enum.Enum):
    """llama_expert_gating_func_type; values are those of the key expert_gating_func."""

    SOFTMAX = 1
    SIGMOID = 2
    SOFTMAX_WEIGHT = 3
    SQRT_SOFTPLUS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How experts are selected and weighted."""

    gating: Gating = Gating.SOFTMAX
    norm_w: bool = True
    scaled: bool = False  # weights have a scale other than 0 and 1
    act: Act = Act.UNARY
    weight_before: bool = False  # llama4: weights multiply the input, not the output
    select_logits: bool = False  # llama4: experts are selected by logits
    groups: int = 0  # of experts, `groups_used` of which are selected first
    groups_used: int = 0
    precise: bool = False  # mistral4: the input of the down projection may overflow f16


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInput:
    """Inputs for one cache: write indices, mask, and the rotation matrices for quantised K and V."""

    n_kv: Size
    mask: GraphTensor
    k_idxs: GraphTensor
    v_idxs: GraphTensor | None = None
    k_rot: GraphTensor | None = None
    v_rot: GraphTensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttnInput:
    """Attention inputs. `swa` is None if no layer has a sliding window."""

    base: CacheInput
    swa: CacheInput | None = None

    def of(self, layer: GraphLayer) -> CacheInput:
        """The inputs for this layer's cache."""
        return self.swa if self.swa is not None and layer.facts.is_swa else self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputs:
    """What all layers of a graph share: inputs, and how experts are selected."""

    pos: GraphTensor
    attn: AttnInput
    out_ids: GraphTensor
    routing: Routing
    attn_scale: GraphTensor | None = None


class GraphLayer:
    """One block and its weights. `facts` has what its weights and caches are; some families also go by `index`."""

    def __init__(self, build: Build, index: int, facts: LayerFacts) -> None:
        self.build, self.index, self.facts = build, index, facts
        self._names = {name for name, _ in facts.shapes}

    @property
    def inputs(self) -> LayerInputs:
        return self.build.inputs

    @property
    def hparams(self) -> Hparams:
        return self.build.hparams

    def __contains__(self, name: str) -> bool:
        """True if the file has blk.N.NAME.weight."""
        return f"{name}.weight" in self._names

    def tensor(self, name: str) -> GraphTensor | None:
        """The tensor blk.N.NAME; None if the file does not have it."""
        return self.build.block_weight(self.index, name) if name in self._names else None

    def weight(self, name: str) -> GraphTensor | None:
        return self.tensor(f"{name}.weight")

    def bias(self, name: str) -> GraphTensor | None:
        return self.tensor(f"{name}.bias")

    def scale(self, name: str) -> GraphTensor | None:
        return self.tensor(f"{name}.scale")

    def without_scales(self) -> GraphLayer:
        """A copy of the layer without weight scales, for graphs that do not apply them."""
        shapes = tuple((name, ne) for name, ne in self.facts.shapes if not name.endswith(".scale"))
        return GraphLayer(self.build, self.index, replace(self.facts, shapes=shapes))

    def __getitem__(self, name: str) -> GraphTensor:
        """A required weight: llama.cpp does not load a file without it."""
        return self.required(f"{name}.weight")

    def required(self, name: str) -> GraphTensor:
        """The required tensor blk.N.NAME."""
        tensor = self.tensor(name)
        if tensor is None:
            raise MissingTensorError(f"no tensor blk.{self.index}.{name}")
        return tensor


class Build:
    """A graph under construction. `facts`: of the layers to build, by layer number."""

    inputs: LayerInputs  # set before the first layer is built

    def __init__(
        self,
        hparams: Hparams,
        facts: Mapping[int, LayerFacts],
        options: GraphOptions,
        sizes: GraphSizes,
    ) -> None:
        self.hparams = hparams
        self.facts = facts
        self.options = options
        self.sizes = sizes
        self.graph = Graph()
        self.caches: dict[str, GraphTensor] = {}
        self._tensors: dict[str, GraphTensor] = {}
        self.embd: GraphTensor | None = None  # res->t_embd: pooled to embeddings
        # res->t_inp_embd, followed by deepstack image embeddings
        self.inp_embd: GraphTensor | None = None

    @property
    def n_tokens(self) -> Size:
        return self.sizes.n_tokens

    def tensor(self, name: str) -> GraphTensor | None:
        """A weight outside the layers; None if the file does not have it."""
        entry = self.hparams.globals.get(name)
        return None if entry is None else self._weight(name, entry)

    def block_weight(self, il: int, name: str) -> GraphTensor:
        """A weight of a block, shared by all layers that run the block."""
        entry = self.hparams.weights(il)[name]
        return self._weight(f"blk.{self.hparams.block_of(il)}.{name}", entry)

    def _weight(self, name: str, entry: Tensor) -> GraphTensor:
        if name not in self._tensors:
            self._tensors[name] = weight(name, entry.type, entry.shape[::-1])
        return self._tensors[name]

    def weight(self, name: str) -> GraphTensor | None:
        return self.tensor(f"{name}.weight")

    def __getitem__(self, name: str) -> GraphTensor:
        return self.required(f"{name}.weight")

    def required(self, name: str) -> GraphTensor:
        """The required tensor of this name outside the layers."""
        tensor = self.tensor(name)
        if tensor is None:
            raise MissingTensorError(f"no tensor {name}")
        return tensor

    def cache(self, name: str, kind: TensorType, *dims: Size) -> GraphTensor:
        """The cache tensor of this name, created at first use."""
        if name not in self.caches:
            self.caches[name] = GraphTensor(
                op="NONE", type=kind, ne=shape(*dims), home=Home.CACHE, name=name
            )
        return self.caches[name]

    def layers(self) -> Iterator[GraphLayer]:
        """The layers to build, in order."""
        for index, facts in self.facts.items():
            if len(self.graph.nodes) > MAX_NODES:
                raise NoGraphError(f"the graph has more than {MAX_NODES:,} nodes")
            self.graph.mark()
            yield GraphLayer(self, index, facts)

    def only_numbers(self, *sizes: Size) -> bool:
        """True if the sizes are numbers. If not, builds a placeholder, and the graph is rebuilt for every load."""
        unknown = [size for size in sizes if isinstance(size, Dim)]
        # No load makes a size differ from itself: the placeholder's plan never holds.
        self.graph.unequal.update((size, size) for size in unknown)
        if unknown:
            cur = self.input_embd()
            for _ in self.layers():
                cur = ggml.scale(cur)
                self.expand(cur)
        return not unknown

    def expand(self, tensor: GraphTensor) -> None:
        self.graph.expand(tensor)

    @property
    def crops_early(self) -> bool:
        """True if the last layer computes only the output rows.

        It computes all rows if prediction blocks read its state, except since 0.6 (crop_before_nextn).
        """
        return self.options.rules >= Rules.V0_6 or not self.predicts

    @property
    def predicts(self) -> bool:
        """True if this build passes the last state to multi-token prediction blocks."""
        return self.options.rules >= PREDICTS_SINCE.get(self.hparams.arch, 0)

    def output(self, tensor: GraphTensor) -> None:
        """Marks a graph output: it is never freed."""
        tensor.is_output = True

    def output_embd(self, tensor: GraphTensor) -> None:
        self.embd = tensor
        self.output(tensor)

    # Inputs: leafs, allocated first, in the order in which the graph uses them.

    def input_embd(
        self, *, scaled: bool = False, width: int | None = None, table: GraphTensor | None = None
    ) -> GraphTensor:
        """build_inp_embd: the graph looks up tokens, and also has an input for embeddings.

        `width`: n_embd_inp if it exceeds n_embd (deepstack). `scaled`: f_embedding_scale is set. `table`: if not
        token_embd.
        """
        table = table or self["token_embd"]
        n_embd = self.hparams.n_embd
        tokens = ggml.graph_input(I32, self.n_tokens, name="inp_tokens")
        embd = ggml.graph_input(F32, width or n_embd, self.n_tokens, name="inp_embd")
        cur = ggml.get_rows(table, tokens)
        # Since 0.6 the rows of looked-up tokens are written into the embeddings.
        mixed: GraphTensor | None = None
        if self.options.rules >= Rules.V0_6 and self.hparams.arch not in UNMIXED:
            mixed_tokens = ggml.graph_input(I32, self.n_tokens, name="inp_mixed_tokens")
            mixed = ggml.get_rows(table, mixed_tokens)
            self.expand(cur)
            self.expand(mixed)
        if width:
            cur = ggml.pad(cur, width - n_embd)
        self.expand(cur)
        self.expand(embd)
        if mixed is not None:
            mixed_embd = ggml.graph_input(F32, *embd.ne[:2], name="inp_mixed_embd")
            slots = ggml.graph_input(I64, self.n_tokens, name="inp_mixed_slots")
            rows = ggml.pad(mixed, width - n_embd) if width else mixed
            self.expand(ggml.set_rows(ggml.dup(mixed_embd), rows, slots))
        if width:
            cur = ggml.view(cur, n_embd, self.n_tokens, strides=(cur.nb[1],))
        self.inp_embd = cur
        if scaled:
            cur = cur if self.graph.is_contiguous(cur) else ggml.cont(cur)
            by_row = width and self.options.rules >= Rules.V0_6
            cur = self._scale_rows(cur) if by_row else ggml.scale(cur)
        self.expand(cur)
        return cur

    def scale_embd(self, cur: GraphTensor) -> GraphTensor:
        """Embeddings times a constant. Where only token rows are scaled, 0.6 multiplies each row by an input."""
        if self.options.rules < Rules.V0_6 or self.hparams.arch not in SCALED_IMAGES:
            return ggml.scale(cur)
        cur = self._scale_rows(cur)
        self.expand(cur)
        return cur

    def _scale_rows(self, cur: GraphTensor) -> GraphTensor:
        return ggml.mul(cur, ggml.graph_input(F32, 1, self.n_tokens, name="inp_scale_rows"))

    def input_out_ids(self) -> GraphTensor:
        return ggml.graph_input(I32, self.sizes.n_outputs, name="out_ids")

    @cached_property
    def rs(self) -> StateInput:
        """build_rs_inp: which rows of the state caches a batch reads."""
        count = self.sizes.n_seqs
        copy = ggml.graph_input(I32, count, name="rs_s_copy")
        extra_count = 0 if self.options.rules < Rules.V0_6 else count - 1
        return StateInput(
            copy=copy, main=ggml.view(copy, count), extra=ggml.view(copy, extra_count)
        )

    def input_cls(self) -> GraphTensor:
        return ggml.graph_input(I32, self.sizes.n_seqs, name="cls")


def weight(name: str, kind: TensorType, ne: tuple[int, ...]) -> GraphTensor:
    return GraphTensor(op="NONE", type=kind, ne=shape(*ne), home=Home.WEIGHTS, name=name)


class GraphFamily(Protocol):
    """Builds the graphs of one family of architectures."""

    def variant(self, hparams: Hparams, il: int) -> Hashable:
        """What distinguishes layer `il` from others, beyond its LayerFacts."""

    def build(self, build: Build) -> None:
        """Builds the whole graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """Facts read from the header once. `alike`: a number per layer, equal for layers that are built alike."""

    family: GraphFamily
    hparams: Hparams
    layers: tuple[LayerFacts, ...]
    alike: tuple[int, ...]
    types: Mapping[str, TensorType]  # of the weights, by name
