"""A verdict -> the flags that follow from it, with limits that keep the RAM within what was judged, and what of the
model is not on the devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from edgekit.bill.cache_types import F16
from edgekit.bill.task import Placement
from edgekit.bill.verdict import Status, Verdict
from edgekit.engines.llamacpp.budget import devices
from edgekit.engines.llamacpp.estimate import repacked_bytes
from edgekit.engines.llamacpp.flags import REPEATED, keys_of, placement, this_cpu, values
from edgekit.engines.llamacpp.growth import growth_limits
from edgekit.engines.llamacpp.placement import has_experts_on_host
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.protocol import Offload
from edgekit.machine.types import HOST
from edgekit.units import format_bytes

PLACEMENT, DEVICES = keys_of("placement"), keys_of("devices")
LIMITS, CHOSEN = keys_of("batch", "server"), PLACEMENT | keys_of("cache", "weights")


class Repacking(NamedTuple):
    """The copy of weights that CPU builds keep, rearranged for the processor, where it is not in the bill."""

    size_bytes: int
    fits: bool


def repacking(verdict: Verdict) -> Repacking:
    """Where the copy does not fit, llama.cpp is started with -nr."""
    setup: LlamaCppSetup = verdict.way.setup
    if setup.repack or verdict.variant is None:
        return Repacking(0, fits=True)
    more = repacked_bytes(verdict.variant.model, setup)
    uses = [use for use in verdict.uses if HOST in use.budget.pools]
    fuller = (replace(use, required_bytes=use.required_bytes + more) for use in uses)
    return Repacking(more, fits=not more or all(use.status is not Status.FAILED for use in fuller))


def repack_notes(size_bytes: int) -> list[str]:
    if size_bytes <= 0:
        return []
    copy = "default CPU builds keep a repacked copy of the output weights"
    return [f"{copy}: +{format_bytes(size_bytes)} of RAM; -nr turns it off"]


def started(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    """All flags that start llama.cpp as it was judged. `given`: by the user.

    Context and layers are always among them: llama.cpp would fit them to the free memory.
    """
    load, setup = verdict.load, verdict.way.setup
    flash = load.flash_attention
    if flash is None and load.cache_v is not None and load.cache_v.is_quantized:
        flash = True  # llama.cpp quantises the values only with it
    load = replace(
        load,
        context_tokens=verdict.context_tokens,
        # 4 sequences share one cache by default; given a number, each has its own
        sequences=load.sequences or None,
        unified=load.unified if load.unified is bool(load.sequences) else None,
        cache_k=None if load.cache_k == F16 else load.cache_k,
        cache_v=None if load.cache_v == F16 else load.cache_v,
        flash_attention=flash,
    )
    on_device = PLACEMENT if setup.has_device else PLACEMENT | DEVICES
    found = {
        key: value for key, value in values(load, setup).items() if key not in REPEATED | on_device
    }
    found |= {"backend": setup.backend.value, **placement(setup), **growth_limits(verdict)}
    if not repacking(verdict).fits:
        found["repack"] = False
    return found | {key: value for key, value in given.items() if key in REPEATED}


def settle(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that start llama.cpp as it was judged: those that were given, and what the verdict adds."""
    found = started(verdict, given)
    first = {key: found[key] for key in found if key in LIMITS and key not in given}
    chosen = {key: found[key] for key in found if key in CHOSEN}
    settled = {**first, **given, "context": verdict.context_tokens, **chosen}
    if not verdict.way.cards and devices(verdict.machine):
        settled["backend"] = "cpu"  # else it would use the devices that there are
    return settled


def machine_flags(placement: Placement) -> dict[str, Any]:
    """The backend, the CPU that weights are repacked for, and the free memory of each of several cards."""
    setup: LlamaCppSetup = placement.setup
    own = placement.cards[
        len(setup.servers) :
    ]  # those of servers come first; --rpc has their memory
    found: dict[str, Any] = {} if setup.servers and not own else {"backend": setup.backend.value}
    if setup.repack or setup.cpu is not this_cpu():
        found["cpu"] = setup.cpu.value
    if len(placement.cards) > 1:
        if own:
            found["device_memory"] = tuple(card.free_bytes for card in own)
        if setup.tensor_split:  # cards that it does not name get nothing
            more = len(placement.cards) - len(setup.tensor_split)
            found["tensor_split"] = (*setup.tensor_split, *[0.0] * more)
    return found


def offload(verdict: Verdict) -> Offload:
    """What of the model is not on the devices."""
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
