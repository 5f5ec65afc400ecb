"""A graph under construction: the model's weights, the load's sizes, and what all blocks share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.dims import Dim, Size
from edgekit.engines.llamacpp.graph.hparams import Hparams, LayerFacts
from edgekit.engines.llamacpp.graph.tensor import (
    F32,
    I32,
    I64,
    Graph,
    GraphTensor,
    Home,
    MissingTensorError,
    NoGraphError,
    shape,
)
from edgekit.engines.llamacpp.versions import Rules
from edgekit.formats.dtype import TensorType

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


# Their image embeddings are already scaled.
GIVEN_UNSCALED = frozenset({"gemma-embedding", "gemma3", "gemma3n", "gemma4"})
# The first builds in which multi-token prediction blocks read the last state of every token (t_h_nextn; grep
# embeddings_nextn_masked in src/models).
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


class Mixed(NamedTuple):
    found: GraphTensor
    given: GraphTensor
    slots: GraphTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """What changes the graph's nodes, not only their sizes."""

    flash_attn: bool
    v_trans: bool  # each row of the V cache holds one channel of all tokens
    type_k: TensorType
    type_v: TensorType
    embeddings: bool
    streams: bool  # each sequence has its own cache
    rules: int  # a build of llama.cpp (versions.py)


class GraphLayer:
    """One block and its weights. `index` is only for names: what differs between layers is in `facts`."""

    def __init__(self, build: Build, index: int, facts: LayerFacts) -> None:
        self.build, self.index, self.facts = build, index, facts
        self._shapes = dict(facts.shapes)
        self._made: dict[str, GraphTensor] = {}

    def __contains__(self, name: str) -> bool:
        """True if the file has blk.N.NAME.weight."""
        return f"{name}.weight" in self._shapes

    def tensor(self, name: str) -> GraphTensor | None:
        """The tensor blk.N.NAME; None if the file does not have it."""
        made = self._made.get(name)
        if made is None and name in self._shapes:
            made = self._made[name] = self.build.block_weight(self.index, name)
        return made

    def weight(self, name: str) -> GraphTensor | None:
        return self.tensor(f"{name}.weight")

    def bias(self, name: str) -> GraphTensor | None:
        return self.tensor(f"{name}.bias")

    def scale(self, name: str) -> GraphTensor | None:
        return self.tensor(f"{name}.scale")

    def without_scales(self) -> GraphLayer:
        """A copy of the layer without weight scales, for graphs that do not apply them."""
        shapes = tuple(one for one in self.facts.shapes if not one[0].endswith(".scale"))
        return GraphLayer(self.build, self.index, replace(self.facts, shapes=shapes))

    def __getitem__(self, name: str) -> GraphTensor:
        """A required weight: llama.cpp does not load a file without it."""
        return self.need(f"{name}.weight")

    def need(self, name: str) -> GraphTensor:
        """The required tensor blk.N.NAME."""
        found = self.tensor(name)
        if found is None:
            raise MissingTensorError(f"no tensor blk.{self.index}.{name}")
        return found


class Build:
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
        self._made: dict[str, GraphTensor] = {}
        self.embd: GraphTensor | None = None  # res->t_embd: pooled to embeddings
        self.inp_embd: GraphTensor | None = (
            None  # res->t_inp_embd, followed by deepstack image embeddings
        )

    @property
    def n_tokens(self) -> Size:
        return self.sizes.n_tokens

    def tensor(self, name: str) -> GraphTensor | None:
        """A weight outside the layers; None if the file does not have it."""
        made = self._made.get(name)
        if made is None and (found := self.hparams.globals.get(name)) is not None:
            made = self._made[name] = weight(name, found.type, found.shape[::-1])
        return made

    def block_weight(self, il: int, name: str) -> GraphTensor:
        """A weight of a block, shared by all layers that run the block."""
        full = f"blk.{il % self.hparams.n_block}.{name}"
        made = self._made.get(full)
        if made is None:
            found = self.hparams.weights(il)[name]
            made = self._made[full] = weight(full, found.type, found.shape[::-1])
        return made

    def weight(self, name: str) -> GraphTensor | None:
        return self.tensor(f"{name}.weight")

    def __getitem__(self, name: str) -> GraphTensor:
        found = self.weight(name)
        if found is None:
            raise MissingTensorError(f"no tensor {name}.weight")
        return found

    def cache(self, name: str, kind: TensorType, *dims: Size) -> GraphTensor:
        """The cache tensor of this name, created at first use."""
        found = self.caches.get(name)
        if found is None:
            found = self.caches[name] = GraphTensor(
                op="NONE", type=kind, ne=shape(*dims), home=Home.CACHE, name=name
            )
        return found

    def layers(self) -> Iterator[GraphLayer]:
        """The layers to build, in order."""
        for index, facts in self.facts.items():
            if len(self.graph.nodes) > MAX_NODES:
                raise NoGraphError(f"the graph has more than {MAX_NODES:,} nodes")
            self.graph.mark()
            yield GraphLayer(self, index, facts)

    def only_numbers(self, *sizes: Size) -> bool:
        """True if the sizes are plain numbers. If not, builds a placeholder: the graph is rebuilt for every load."""
        unknown = [size for size in sizes if isinstance(size, Dim)]
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
        """True if the last layer of a model with prediction blocks is reduced to the output rows: in builds before
        those blocks read its state, and again since 0.6 (crop_before_nextn).
        """
        return self.options.rules >= Rules.V0_6 or not self.predicts

    @property
    def predicts(self) -> bool:
        """True if this build passes the last state to multi-token prediction blocks."""
        return self.options.rules >= PREDICTS_SINCE.get(self.hparams.arch, 0)

    def output(self, tensor: GraphTensor) -> None:
        """Marks a graph output: it is never freed."""
        tensor.is_output = True

    # Inputs: leafs, allocated first, in the order in which the graph uses them.

    def input_embd(
        self, *, scaled: bool = False, width: int | None = None, table: GraphTensor | None = None
    ) -> GraphTensor:
        """build_inp_embd: the graph has both token lookup and given embeddings.

        `width`: n_embd_inp if it exceeds n_embd (deepstack). `scaled`: f_embedding_scale is set. `table`: if not
        token_embd.
        """
        table = table or self["token_embd"]
        n_embd = self.hparams.n_embd
        tokens = ggml.graph_input(I32, self.n_tokens, name="inp_tokens")
        given = ggml.graph_input(F32, width or n_embd, self.n_tokens, name="inp_embd")
        found = ggml.get_rows(table, tokens)
        mixed = self._input_mixed(table, width or n_embd)
        if mixed is not None:
            self.expand(found)
            self.expand(mixed.found)
        if width:
            found = ggml.pad(found, width - n_embd)
        self.expand(found)
        self.expand(given)
        if mixed is not None:
            into = ggml.pad(mixed.found, width - n_embd) if width else mixed.found
            self.expand(ggml.set_rows(ggml.dup(mixed.given), into, mixed.slots))
        if width:
            found = ggml.view(found, n_embd, self.n_tokens, strides=(found.nb[1],))
        self.inp_embd = found
        if scaled:
            found = found if self.graph.is_contiguous(found) else ggml.cont(found)
            by_row = width and self.options.rules >= Rules.V0_6
            found = self._scaled_by_row(found) if by_row else ggml.scale(found)
        self.expand(found)
        return found

    def _input_mixed(self, table: GraphTensor, width: int) -> Mixed | None:
        """Since 0.6: looked-up tokens are written into their rows of the given embeddings."""
        if self.options.rules < Rules.V0_6 or self.hparams.arch in UNMIXED:
            return None
        tokens = ggml.graph_input(I32, self.n_tokens, name="inp_mixed_tokens")
        return Mixed(
            found=ggml.get_rows(table, tokens),
            given=ggml.graph_input(F32, width, self.n_tokens, name="inp_mixed_embd"),
            slots=ggml.graph_input(I64, self.n_tokens, name="inp_mixed_slots"),
        )

    def scaled_embd(self, cur: GraphTensor) -> GraphTensor:
        """Embeddings times a constant. If only token rows are scaled, 0.6 does it inside build_inp_embd."""
        if self.options.rules < Rules.V0_6 or self.hparams.arch not in GIVEN_UNSCALED:
            return ggml.scale(cur)
        cur = self._scaled_by_row(cur)
        self.expand(cur)
        return cur

    def _scaled_by_row(self, cur: GraphTensor) -> GraphTensor:
        return ggml.mul(cur, ggml.graph_input(F32, 1, self.n_tokens, name="inp_scale_rows"))

    def input_pos(self, per_token: int = 1) -> GraphTensor:
        return ggml.graph_input(I32, self.n_tokens * per_token, name="inp_pos")

    def input_attn_scale(self) -> GraphTensor:
        return ggml.graph_input(F32, 1, 1, self.n_tokens, name="inp_attn_scale")

    def input_out_ids(self) -> GraphTensor:
        return ggml.graph_input(I32, self.sizes.n_outputs, name="out_ids")

    def input_mean(self) -> GraphTensor:
        return ggml.graph_input(F32, self.n_tokens, self.sizes.n_seqs, name="mean")

    def input_cls(self) -> GraphTensor:
        return ggml.graph_input(I32, self.sizes.n_seqs, name="cls")


def weight(name: str, kind: TensorType, ne: tuple[int, ...]) -> GraphTensor:
    return GraphTensor(op="NONE", type=kind, ne=shape(*ne), home=Home.WEIGHTS, name=name)


class GraphFamily(Protocol):
    """Builds the graphs of one family of architectures."""

    def more(self, hparams: Hparams, il: int) -> Hashable:
        """Family-specific facts of layer `il`."""

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
