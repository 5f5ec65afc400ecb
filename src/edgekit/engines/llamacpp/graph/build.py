"""One graph being built: the model's weights, the load's sizes, and what the blocks share."""

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
    """What llama_context reserves a graph for; numbers, or polynomials in their place."""

    n_tokens: Size
    n_seqs: Size
    n_outputs: Size
    n_kv: Size
    n_kv_swa: Size
    n_stream: Size  # 1 or n_seqs

    @property
    def n_seq_tokens(self) -> Size:
        return self.n_tokens // self.n_seqs


# Their pictures come as embeddings that are right already.
GIVEN_UNSCALED = frozenset({"gemma-embedding", "gemma3", "gemma3n", "gemma4"})
# The first builds in which blocks that predict further tokens read the last state of every token (t_h_nextn; grep
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
    v_trans: bool  # values are stored token by token in each row of the cache
    type_k: TensorType
    type_v: TensorType
    embeddings: bool
    streams: bool  # sequences have caches of their own
    rules: int  # a build of llama.cpp (versions.py)


class GraphLayer:
    """One block and its weights. `index` names it; nothing else may depend on it: facts say what differs."""

    def __init__(self, build: Build, index: int, facts: LayerFacts) -> None:
        self.build, self.index, self.facts = build, index, facts
        self._shapes = dict(facts.shapes)
        self._made: dict[str, GraphTensor] = {}

    def __contains__(self, name: str) -> bool:
        """Whether the file has blk.N.NAME.weight."""
        return f"{name}.weight" in self._shapes

    def tensor(self, name: str) -> GraphTensor | None:
        """blk.N.NAME, None when the file does not have it."""
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
        """The same layer for graphs that do not apply the scales of its weights."""
        shapes = tuple(one for one in self.facts.shapes if not one[0].endswith(".scale"))
        return GraphLayer(self.build, self.index, replace(self.facts, shapes=shapes))

    def __getitem__(self, name: str) -> GraphTensor:
        """A weight that must be there: llama.cpp would not load the file without it."""
        return self.need(f"{name}.weight")

    def need(self, name: str) -> GraphTensor:
        """The same for blk.N.NAME."""
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
        self.embd: GraphTensor | None = None  # res->t_embd: what embeddings are made from
        self.inp_embd: GraphTensor | None = (
            None  # res->t_inp_embd: with pictures behind it (deepstack)
        )

    @property
    def n_tokens(self) -> Size:
        return self.sizes.n_tokens

    def tensor(self, name: str) -> GraphTensor | None:
        """A weight outside the layers, None when the file does not have it."""
        made = self._made.get(name)
        if made is None and (found := self.hparams.globals.get(name)) is not None:
            made = self._made[name] = weight(name, found.type, found.shape[::-1])
        return made

    def block_weight(self, il: int, name: str) -> GraphTensor:
        """One and the same for all layers that run through a block."""
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
        """A cache tensor: one and the same for all who ask by its name."""
        found = self.caches.get(name)
        if found is None:
            found = self.caches[name] = GraphTensor(
                op="NONE", type=kind, ne=shape(*dims), home=Home.CACHE, name=name
            )
        return found

    def layers(self) -> Iterator[GraphLayer]:
        """Those that are to be built, one after another."""
        for index, facts in self.facts.items():
            if len(self.graph.nodes) > MAX_NODES:
                raise NoGraphError(f"the graph has more than {MAX_NODES:,} nodes")
            self.graph.mark()
            yield GraphLayer(self, index, facts)

    def only_numbers(self, *sizes: Size) -> bool:
        """Whether they are known. Where not, this graph is not to be finished: it is built anew for every load."""
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
        """Whether the last layer of a model with prediction blocks is narrowed to the output rows.

        It was until those blocks read its state, and is again in 0.6 (crop_before_nextn).
        """
        return self.options.rules >= Rules.V0_6 or not self.predicts

    @property
    def predicts(self) -> bool:
        """Whether this build of the architecture gives the last state to blocks that predict further tokens."""
        return self.options.rules >= PREDICTS_SINCE.get(self.hparams.arch, 0)

    def output(self, tensor: GraphTensor) -> None:
        """One of the graph's results: it is never freed."""
        tensor.is_output = True

    # Inputs: leafs that are placed first, in the order in which the graph comes across them.

    def input_embd(
        self, *, scaled: bool = False, width: int | None = None, table: GraphTensor | None = None
    ) -> GraphTensor:
        """build_inp_embd: tokens looked up, or embeddings given; both ways are in the graph.

        `width` is n_embd_inp where it is more than n_embd (deepstack); `scaled` where f_embedding_scale is set;
        `table` where it is not token_embd.
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
        """From 0.6 on: tokens that are looked up and written into their rows of the embeddings that are given."""
        if self.options.rules < Rules.V0_6 or self.hparams.arch in UNMIXED:
            return None
        tokens = ggml.graph_input(I32, self.n_tokens, name="inp_mixed_tokens")
        return Mixed(
            found=ggml.get_rows(table, tokens),
            given=ggml.graph_input(F32, width, self.n_tokens, name="inp_mixed_embd"),
            slots=ggml.graph_input(I64, self.n_tokens, name="inp_mixed_slots"),
        )

    def scaled_embd(self, cur: GraphTensor) -> GraphTensor:
        """Embeddings times a number. Where given ones are not scaled, 0.6 does it row by row in build_inp_embd."""
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
    """How the graph of an architecture is built."""

    def more(self, hparams: Hparams, il: int) -> Hashable:
        """What layer `il` depends on besides the facts of every layer."""

    def build(self, build: Build) -> None:
        """Makes the whole graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """What is read from the header once. `alike`: small numbers, the same for layers that are built alike."""

    family: GraphFamily
    hparams: Hparams
    layers: tuple[LayerFacts, ...]
    alike: tuple[int, ...]
    types: Mapping[str, TensorType]  # of the weights, by name
