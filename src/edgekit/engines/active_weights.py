"""A model -> which of its weights one token uses, layer by layer: all of them, but only the chosen experts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from edgekit.errors import UnknownArchitectureError
from edgekit.formats.types import Tensor
from edgekit.model.types import Cached, Model, ModelGeometry, attention_of
from edgekit.sources.types import Container

MXFP4_SHARE = (
    4.25 / 16
)  # gpt-oss: experts have four bits and a scale per 32 weights, the rest sixteen


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShare:
    """Bytes of one layer, or of everything outside the layers: all of them, and those that one token uses."""

    active: float
    whole: float
    experts: float = 0.0  # routed experts, part of `whole`
    experts_active: float = 0.0

    @property
    def ratio(self) -> float:
        return self.active / self.whole if self.whole else 1.0

    @property
    def experts_ratio(self) -> float:
        return self.experts_active / self.experts if self.experts else self.ratio

    @property
    def rest_ratio(self) -> float:
        rest = self.whole - self.experts
        return (self.active - self.experts_active) / rest if rest > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveWeights:
    """The weights that one token uses."""

    layers: tuple[LayerShare, ...]  # layers with weights of their own
    outside: LayerShare  # active: the head; an embedding is looked up, towers are not used
    parameters: int  # that a prompt token is multiplied with: without the head
    has_experts: bool


class _Prepared:
    """Of one model, for every engine."""

    def __init__(self) -> None:
        self.weights: Cached[ActiveWeights] = Cached()


def active_weights(model: Model) -> ActiveWeights:
    """From the tensors in the header, else from the architecture, else from widths alone. Cached with the model."""
    return model.prepared(_Prepared).weights.get(lambda: _active(model))


def _active(model: Model) -> ActiveWeights:
    try:
        expected = None if _is_plain(model) else _by_architecture(model)
    except UnknownArchitectureError:
        expected = None
    if not model.header.tensors:
        return expected or _by_shape(model.geometry)
    found = _by_directory(model)
    # Packed safetensors store several weights in one number, so their tensors have too few elements.
    return found if expected is None else replace(found, parameters=expected.parameters)


def _is_plain(model: Model) -> bool:
    """Whether the elements of the tensors are the weights."""
    return bool(model.header.tensors) and model.header.container is Container.GGUF


class _Sums:
    """Bytes and parameters, layer by layer."""

    def __init__(self, geometry: ModelGeometry) -> None:
        self.geometry = geometry
        # Layers with weights of their own: later loops use the same weights again.
        self.own = geometry.layers[: len(geometry.layers) // max(geometry.loops, 1)]
        self.plain: dict[int, float] = defaultdict(float)
        self.experts: dict[int, float] = defaultdict(float)
        self.outside = 0.0
        self.looked_up = 0.0
        self.parameters = 0.0

    def add(self, layer: int | None, size: float, elements: int, *, experts: bool) -> None:
        if layer is None:
            self.outside += size
        elif layer < len(self.own):
            (self.experts if experts else self.plain)[layer] += size
            used = self._used(layer) if experts else 1.0
            self.parameters += elements * used * self.geometry.loops

    def _used(self, layer: int) -> float:
        found = self.own[layer].experts
        return 1.0 if found is None or not found.count else min(1.0, found.used / found.count)

    def active(self) -> ActiveWeights:
        return ActiveWeights(
            layers=tuple(self._share(layer) for layer in range(len(self.own))),
            outside=LayerShare(
                active=max(0.0, self.outside - self.looked_up), whole=max(self.outside, 1.0)
            ),
            parameters=int(self.parameters),
            has_experts=any(self.experts.values()),
        )

    def _share(self, layer: int) -> LayerShare:
        plain, experts = self.plain[layer], self.experts[layer]
        active = experts * self._used(layer)
        return LayerShare(
            active=plain + active,
            whole=plain + experts,
            experts=experts,
            experts_active=active,
        )


def _by_directory(model: Model) -> ActiveWeights:
    from edgekit.model.roles import Role, block_of, roles_of

    tensors = model.header.tensors or ()
    sums = _Sums(model.geometry)
    roles = roles_of(tensors, layers=len(sums.own))
    tied = Role.OUTPUT not in roles
    head = _head_name(tensors) if tied else ""
    for tensor, role in zip(tensors, roles, strict=True):
        if role is Role.MTP:
            continue
        layer = None if role is Role.TOWER else block_of(tensor.name)
        sums.add(layer, tensor.size_bytes, tensor.elements, experts=role is Role.EXPERTS)
        is_idle = role is Role.TOWER or (role is Role.EMBEDDING and tensor.name != head)
        if layer is None and is_idle:
            sums.looked_up += tensor.size_bytes
    return sums.active()


def _head_name(tensors: Iterable[Tensor]) -> str:
    """The token embedding, which is the head of a tied model: not the table of positions, nor that of every layer."""
    from edgekit.model.roles import Role, roles_of

    others = ("per_layer", "position", "wpe", "type")
    likely = [
        one
        for one in tensors
        if "emb" in one.name or "wte" in one.name
        if not any(part in one.name for part in others)
    ]
    found = [
        one for one, role in zip(likely, roles_of(likely), strict=True) if role is Role.EMBEDDING
    ]
    return max(found, key=lambda one: one.elements).name if found else ""


def _by_architecture(model: Model) -> ActiveWeights:
    from edgekit.formats.quantization import read_quantization
    from edgekit.model.tensor_recipes import TensorKind, TensorRole
    from edgekit.model.tensors import expected_tensors

    geometry = model.geometry
    sums = _Sums(geometry)
    tables = {TensorRole.POSITION, TensorRole.SEGMENT, TensorRole.LAYER_EMBEDDING}
    if not geometry.tied_embeddings:
        tables.add(TensorRole.EMBEDDING)
    packed = read_quantization(model.header.config)
    lighter = MXFP4_SHARE if packed is not None and packed.method == "mxfp4" else 1.0
    for tensor in expected_tensors(geometry, model.header.config):
        experts = tensor.kind is TensorKind.EXPERT
        size = tensor.elements * (lighter if experts else 1.0)
        sums.add(tensor.layer, size, tensor.elements, experts=experts)
        if tensor.layer is None and tensor.role in tables:
            sums.looked_up += size
    return sums.active()


def _by_shape(geometry: ModelGeometry) -> ActiveWeights:
    """From widths alone: close enough for the shares of a layer."""
    sums = _Sums(geometry)
    hidden = geometry.hidden
    for place, layer in enumerate(sums.own):
        attention = attention_of(layer.mixer)
        inner = hidden if attention is None else attention.heads * attention.key_dim
        sums.add(place, size := 4 * hidden * inner, size, experts=False)
        if layer.dense is not None:
            size = (3 if layer.dense.gated else 2) * hidden * layer.dense.width
            sums.add(place, size, size, experts=False)
        if (experts := layer.experts) is not None:
            matrices = (3 if experts.gated else 2) * (experts.latent or hidden)
            sums.add(place, size := matrices * experts.shared_width, size, experts=False)
            sums.add(place, size := matrices * experts.width * experts.count, size, experts=True)
    table = hidden * (geometry.vocabulary or 0)
    sums.add(None, table if geometry.tied_embeddings else 2 * table, 0, experts=False)
    sums.looked_up = 0 if geometry.tied_embeddings else table
    return sums.active()
