"""A verdict -> its flags, and the commands that start llama.cpp with them.

Flags as in common/arg.cpp @ b21e4de.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.bill.types import F16, Drafter, MemoryEstimate, Placement
from edgekit.bill.verdict import Status, Verdict
from edgekit.engines.commands import Command, Startup, leaves_some
from edgekit.engines.llamacpp.estimate import growth_limits, repacked_bytes
from edgekit.engines.llamacpp.flags import REPEATED, command_words, keys_of
from edgekit.engines.llamacpp.front_ends import lm_studio_commands, ollama_commands
from edgekit.engines.llamacpp.model_source import (
    NO_PROJECTOR,
    PLACEHOLDER_DRAFT,
    TEXT_ONLY,
    estimate_source,
    has_own_file,
    model_draft_words,
    model_source,
)
from edgekit.engines.llamacpp.placement import has_experts_on_host
from edgekit.engines.llamacpp.placements import backend_name, devices, pinned
from edgekit.engines.llamacpp.quantization import DEFAULT_MIX
from edgekit.engines.llamacpp.setups import placement as values_of_placement
from edgekit.engines.llamacpp.setups import setup as read_setup
from edgekit.engines.llamacpp.setups import this_cpu, values
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode, LoadFacts, SplitMode
from edgekit.engines.protocol import Offload
from edgekit.machine.types import HOST, Device, Vendor
from edgekit.model.types import Model, embeds_in_one_batch
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.model import OpenModel

PLACEMENT, DEVICES = keys_of("placement"), keys_of("devices", "servers")
LIMITS, CHOSEN = keys_of("batch", "server"), PLACEMENT | keys_of("cache", "weights")


def commands(startup: Startup) -> Iterator[Command]:
    """Commands for llama.cpp, Ollama and LM Studio. The latter two cannot express a given -ot, -sm or --rpc."""
    cards = _card_notes(startup)
    yield from _own(startup, cards)
    setup = startup.placement.setup
    moved = setup.overrides and not startup.placement.by_tensor
    if not moved and not setup.servers and setup.split_mode is SplitMode.LAYER:
        yield from ollama_commands(startup, cards)
        yield from lm_studio_commands(startup)


def _own(startup: Startup, cards: list[str]) -> Iterator[Command]:
    source, around = model_source(startup), startup.environment
    notes = [source.note, *cards] if source.note else cards
    if NO_PROJECTOR in source.words and not has_own_file(startup):  # it takes pictures
        notes = [*notes, TEXT_ONLY]
    verdict, build = startup.verdict, startup.setup.rules
    flags = started(verdict, startup.given)
    server = ["llama-server", *source.words, *command_words(flags, build)]
    more = list(notes)
    repacked = repacking(verdict)
    if repacked.fits and "repack" not in startup.given:
        more += repack_notes(repacked.size_bytes)
    if PLACEHOLDER_DRAFT in server:
        more.append(f"replace {PLACEHOLDER_DRAFT} with the file of {startup.given['draft_model']}")
    yield startup.command("llama-server", "llama-server", server, around, more)
    if startup.setup.embeddings:
        return  # llama-cli does not return embeddings
    alone = flags | {"context": startup.context_tokens, "parallel": 1, "unified": None}
    words = ["llama-cli", *source.words, *command_words(alone, build)]
    yield startup.command("llama-cli", "llama-cli", words, around, notes)


def _card_notes(startup: Startup) -> list[str]:
    """Notes for cases in which the user must exclude cards."""
    used, machine = startup.placement.cards, startup.machine
    if not used or not leaves_some(startup.placement, startup.devices):
        return []
    if used[0].vendor is Vendor.NVIDIA:
        order = "GPUs are numbered in the order in which --device names them"
        return [order] if machine.what_if else []
    names = " and ".join(card.name for card in used)
    return [
        f"planned for {names} only: `llama-server --list-devices` shows their names, -dev NAME selects them"
    ]


def draft_words(verdict: Verdict, drafter: Drafter) -> list[str]:
    """The flags that add a draft model, in command-line order."""
    load, setup = verdict.load, verdict.way.setup
    on_cpu = not setup.has_device  # without -devd it would be on a GPU
    flags: dict[str, Any] = {"draft_device": "none" if on_cpu else None}
    if drafter.model is None:
        return command_words({**flags, "spec_type": "draft-mtp"}, setup.rules)
    name = f"{drafter.name.partition(' ')[0]}:{drafter.changes.get('mix', DEFAULT_MIX)}"
    flags |= {
        "draft_type_k": load.cache_k,
        "draft_type_v": load.cache_v,
        "draft_gpu_layers": None if on_cpu else "all",
    }
    return [*model_draft_words(name, is_catalog=True), *command_words(flags, setup.rules)]


def estimate_words(
    values: Mapping[str, Any], estimate: MemoryEstimate, opened: OpenModel
) -> list[str]:
    """The command line of an estimate."""
    _, setup = read_setup(values)
    program = "llama-server" if setup.mode is LlamaMode.SERVER else "llama-cli"
    context = values.get("context") or LoadFacts.of(estimate).n_ctx
    placed = {} if estimate.backend == "cpu" else values_of_placement(setup)
    flags = {**placed, **values, "context": context, "backend": estimate.backend}
    source = estimate_source(values, opened)
    return [program, *source.words, *command_words(flags, setup.rules)]


def estimate_notes(
    values: Mapping[str, Any], setup: LlamaCppSetup, estimate: MemoryEstimate, opened: OpenModel
) -> Iterator[str]:
    """What to know before running the command of an estimate."""
    if note := estimate_source(values, opened).note:
        yield note
    facts, geometry = LoadFacts.of(estimate), opened.model.geometry
    at_once = facts.n_ubatch
    if setup.embeddings and embeds_in_one_batch(geometry) and at_once < facts.n_ctx_seq:
        yield f"texts over {at_once:,} tokens are refused, because a text is computed in one batch (-b, -ub)"
    if "repack" not in values:  # repacking is neither billed nor disabled
        yield from repack_notes(repacked_bytes(opened.model, setup))


def values_on_cards(cards: Sequence[Device], _named: Sequence[str]) -> dict[str, Any]:
    """Flag values for these cards."""
    memory = tuple(card.free_bytes for card in cards)
    return {"backend": backend_name(cards[0]), "device_memory": memory}


class Repacking(NamedTuple):
    """Repacked copies of weights in CPU builds that are not in the bill."""

    size_bytes: int
    fits: bool


def repacking(verdict: Verdict) -> Repacking:
    """The repacked copy; llama.cpp is started with -nr if it does not fit."""
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
    """All flags that start llama.cpp as judged. `given`: the user's flags.

    Context and layers are always set: otherwise llama.cpp fits them to the free memory.
    """
    load, setup = verdict.load, verdict.way.setup
    flash = load.flash_attention
    if flash is None and load.cache_v is not None and load.cache_v.is_quantized:
        flash = True  # required for a quantised V cache
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
    found |= {
        "backend": setup.backend.value,
        **values_of_placement(setup),
        **growth_limits(verdict),
    }
    if not repacking(verdict).fits:
        found["repack"] = False
    return found | {key: value for key, value in given.items() if key in REPEATED}


def settle(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that start llama.cpp as judged: the given ones, and those that the verdict adds."""
    found = started(verdict, given)
    first = {key: found[key] for key in found if key in LIMITS and key not in given}
    chosen = {key: found[key] for key in found if key in CHOSEN}
    settled = {**first, **given, "context": verdict.context_tokens, **chosen}
    if not verdict.way.cards and devices(verdict.machine):
        settled["backend"] = "cpu"  # otherwise it uses the devices of the machine
    return settled


def placement_flags(
    model: Model, placement: Placement, cards: tuple[Device, ...]
) -> dict[str, Any]:
    """The plan's placement as flags for a machine with these cards; unused cards get a share of 0."""
    if not placement.cards:
        return {"backend": "cpu"}
    setup = pinned(model, placement).setup
    if len(cards) > 1:
        shares = dict(zip(placement.cards, setup.tensor_split or (1.0,), strict=True))
        setup = replace(setup, tensor_split=tuple(shares.get(card, 0.0) for card in cards))
    return values_of_placement(setup)


def machine_flags(placement: Placement) -> dict[str, Any]:
    """The backend, the CPU that weights are repacked for, and each card's free memory if there are several."""
    setup: LlamaCppSetup = placement.setup
    # Without RPC devices, which come first: --rpc has their memory.
    own = placement.cards[len(setup.servers) :]
    found: dict[str, Any] = {} if setup.servers and not own else {"backend": setup.backend.value}
    if setup.repack or setup.cpu is not this_cpu():
        found["cpu"] = setup.cpu.value
    if len(placement.cards) > 1:
        if own:
            found["device_memory"] = tuple(card.free_bytes for card in own)
        if setup.tensor_split:  # cards without a share get nothing
            more = len(placement.cards) - len(setup.tensor_split)
            found["tensor_split"] = (*setup.tensor_split, *[0.0] * more)
    return found


def offload(verdict: Verdict) -> Offload:
    """Which parts of the model are not on the devices."""
    setup = verdict.way.setup
    if not verdict.way.cards:
        return Offload()
    every = None if verdict.variant is None else len(verdict.variant.model.geometry.layers) + 1
    count = setup.n_gpu_layers
    return Offload(
        layers="" if every is None or count >= every else f"{count} of {every} layers",
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
