"""The hyper-parameters that llama.cpp's graphs use, with llama.cpp's own names and defaults.

llama-model.cpp (load_hparams) and llama-hparams.cpp @ 0c1e570. The types of the layers come from the geometry.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from edgekit.engines.llamacpp.graph.tensor import NoGraphError
from edgekit.errors import HeaderError
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
    more: Hashable = None  # specific to the family


class Hparams:
    def __init__(self, model: Model) -> None:
        self.header, self.geometry = model.header, model.geometry
        self.arch = model.geometry.architecture
        self.keys = GgufKeys(self.header.keys, self.arch, self.header.name)
        self.n_layer = len(model.geometry.layers)
        self.n_block = self.n_layer // model.geometry.loops  # blocks with weights
        self.n_embd = self.whole("embedding_length")
        self.n_head_arr = self.per_layer("attention.head_count", 0)
        self.n_head_kv_arr = self.per_layer("attention.head_count_kv", self.n_head_arr)
        self.n_expert = self.whole("expert_count", 0)
        self.n_expert_used_arr = self.per_layer("expert_used_count", 0)
        if not max(self.n_expert_used_arr) <= self.n_expert <= MAX_EXPERTS:
            raise NoGraphError(f"{self.header.name}: llama.cpp has at most {MAX_EXPERTS} experts")
        head = self.n_embd // self.n_head_arr[0] if self.n_head_arr[0] else 0
        self.n_embd_head_k_full = self.whole("attention.key_length", head)
        self.n_embd_head_v_full = self.whole("attention.value_length", head)
        self.n_rot_full = self.whole("rope.dimension_count", self.n_embd_head_k_full)
        attentions = (attention_of(layer.mixer) for layer in model.geometry.layers)
        self.swa = tuple(one is not None and one.span is not Span.ALL for one in attentions)
        self.globals, self.by_layer = _directory(self.header.tensors or ())
        # Multi-token prediction blocks are not loaded.
        inside = (len(names) for il, names in self.by_layer.items() if il < self.n_layer)
        self.n_tensors = len(self.globals) + sum(inside)
        self.n_embd_v_gqa_max = max(
            heads * self.head_dim("v", il) for il, heads in enumerate(self.n_head_kv_arr)
        )

    def key(self, name: str) -> Value | None:
        return self.keys.get(name)

    def whole(self, name: str, default: int | None = None) -> int:
        """An integer key; the value of layer 0 if it is a per-layer list. Raises NoGraphError."""
        try:
            return self.keys.whole(name, default=default, layer=0)
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

    def weights(self, il: int) -> dict[str, Tensor]:
        """The weights of the block that layer `il` runs."""
        return self.by_layer.get(il % self.n_block, {})

    @property
    def has_swa(self) -> bool:
        """True if swa_type is set: sliding-window layers then have a separate cache."""
        return any(self.swa)

    def head_dim(self, side: str, il: int) -> int:
        """Head width of K ("k") or V ("v") in that layer; sliding-window layers may differ."""
        full = self.n_embd_head_k_full if side == "k" else self.n_embd_head_v_full
        name = "key" if side == "k" else "value"
        return self.whole(f"attention.{name}_length_swa", full) if self.swa[il] else full

    def cached_heads(self, side: str, *, swa: bool | None) -> set[int]:
        """Head widths in a cache: of all layers, of sliding-window layers, or of the others."""
        return {
            self.head_dim(side, il)
            for il in range(self.n_layer)
            if self.has_kv(il) and (swa is None or self.swa[il] == swa)
        }

    def varies(self, side: str) -> bool:
        """is_n_embd_k_gqa_variable: layers without attention count as well."""
        widths = {n * self.head_dim(side, il) for il, n in enumerate(self.n_head_kv_arr)}
        return len(widths) > 1

    def has_kv(self, il: int) -> bool:
        return bool(self.geometry.layers[il].mixer.streams)

    def is_recr(self, il: int) -> bool:
        return isinstance(self.geometry.layers[il].mixer, (Recurrent, HybridLayer))

    def layer(self, il: int, more: Hashable = None) -> LayerFacts:
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
            shapes=tuple((name, one.shape[::-1]) for name, one in self.weights(il).items()),
            more=more,
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
