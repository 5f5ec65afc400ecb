"""Geometry -> how many weights, when no tensor directory says it: the tensors it expects, added up.

Norms and biases are left out, so the count is MODELLED: within 0.05 % of every decoder measured (tests/truth). With a
config.json at hand, add up expected_tensors instead: they are exact.
"""

from __future__ import annotations

from edgekit.errors import UnknownArchitectureError
from edgekit.model.tensor_recipes import ExpectedTensor, TensorKind
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import ModelGeometry

_VECTORS = frozenset({TensorKind.NORM, TensorKind.BIAS})


def count_parameters(geometry: ModelGeometry) -> tuple[int, int] | None:
    """(total, active for one token), without towers and MTP blocks; None where it cannot be told."""
    try:
        tensors = expected_tensors(geometry)
    except UnknownArchitectureError:
        return None
    counted = [tensor for tensor in tensors if tensor.kind not in _VECTORS]
    return sum(t.elements for t in counted), sum(active_elements(geometry, t) for t in counted)


def active_elements(geometry: ModelGeometry, tensor: ExpectedTensor) -> int:
    """Those that work on one token: all, but of the experts only the chosen ones."""
    experts = None if tensor.layer is None else geometry.layers[tensor.layer].experts
    if tensor.kind is not TensorKind.EXPERT or experts is None:
        return tensor.elements
    return tensor.elements // experts.count * experts.used
