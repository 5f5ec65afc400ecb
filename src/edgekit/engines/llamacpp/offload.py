"""A verdict -> what of the model is not on the devices."""

from __future__ import annotations

from edgekit.bill.verdict import Verdict
from edgekit.engines.llamacpp.placement import has_experts_on_host
from edgekit.engines.protocol import Offload


def offload(verdict: Verdict) -> Offload:
    setup = verdict.way.setup
    if not verdict.way.cards:
        return Offload()
    return Offload(
        layers=_layers_on_cards(verdict),
        experts=_experts_in_ram(verdict),
        cache=not setup.offload_kqv,
        everything=setup.n_gpu_layers == 0,
    )


def _experts_in_ram(verdict: Verdict) -> str:
    way, setup = verdict.way, verdict.way.setup
    if setup.overrides and not way.by_tensor:
        return "the tensors of -ot"
    layers = () if verdict.variant is None else verdict.variant.model.geometry.layers
    with_experts = sum(1 for layer in layers if layer.experts is not None)
    on_host = has_experts_on_host(setup)
    moved = sum(1 for layer in layers if layer.experts is not None and on_host(layer.index))
    if with_experts and moved == with_experts and not way.by_tensor:
        return "all experts"
    return f"the experts of {moved} layers" if moved else ""


def _layers_on_cards(verdict: Verdict) -> str:
    """'40 of 81 layers'; '' where all of them are on the devices."""
    count = verdict.way.setup.n_gpu_layers
    every = None if verdict.variant is None else len(verdict.variant.model.geometry.layers) + 1
    return "" if every is None or count >= every else f"{count} of {every} layers"
