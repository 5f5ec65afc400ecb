"""llama-server and llama-cli, started as llama.cpp was judged. Flags as in common/arg.cpp @ b21e4de."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.bill.task import Drafter, Placement
from edgekit.bill.types import MemoryEstimate
from edgekit.bill.verdict import Verdict
from edgekit.engines.commands import Command, Startup, leaves_some
from edgekit.engines.llamacpp import ollama
from edgekit.engines.llamacpp.budget import backend_name
from edgekit.engines.llamacpp.estimate import repacked_bytes
from edgekit.engines.llamacpp.flags import command_words, placement
from edgekit.engines.llamacpp.flags import setup as read_setup
from edgekit.engines.llamacpp.lm_studio import lm_studio_commands
from edgekit.engines.llamacpp.mixes import DEFAULT_MIX
from edgekit.engines.llamacpp.model_source import estimate_source, has_own_file, model_source
from edgekit.engines.llamacpp.settle import repack_notes, repacking, started
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode, LoadFacts, SplitMode
from edgekit.engines.model_words import NO_PROJECTOR, PLACEHOLDER_DRAFT, TEXT_ONLY, draft_words
from edgekit.machine.types import Vendor
from edgekit.model.types import embeds_in_one_batch

if TYPE_CHECKING:
    from edgekit.model.open import Opened


def commands(startup: Startup) -> Iterator[Command]:
    """Ollama and LM Studio have no flags for a placement with -ot, -sm or --rpc that the user gave."""
    cards = _card_notes(startup)
    yield from _own(startup, cards)
    if not _is_by_hand(startup.placement):
        yield from ollama.ready(startup, cards)
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
        return  # llama-cli has no embeddings
    alone = flags | {"context": startup.context_tokens, "parallel": 1, "unified": None}
    words = ["llama-cli", *source.words, *command_words(alone, build)]
    yield startup.command("llama-cli", "llama-cli", words, around, notes)


def _is_by_hand(placement: Placement) -> bool:
    setup = placement.setup
    moved = setup.overrides and not placement.by_tensor
    return bool(moved or setup.servers) or setup.split_mode is not SplitMode.LAYER


def _card_notes(startup: Startup) -> list[str]:
    """Where the user has to say which cards not to use."""
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
    """The flags that add a draft model, in the order in which llama.cpp's command has them."""
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
    return [*draft_words(name, is_catalog=True), *command_words(flags, setup.rules)]


def estimate_words(
    values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened
) -> list[str]:
    """The command of an estimate."""
    _, setup = read_setup(values)
    program = "llama-server" if setup.mode is LlamaMode.SERVER else "llama-cli"
    context = values.get("context") or LoadFacts.of(estimate).n_ctx
    flags = {**placement(setup), **values, "context": context, "backend": estimate.backend}
    source = estimate_source(values, opened)
    return [program, *source.words, *command_words(flags, setup.rules)]


def estimate_notes(
    values: Mapping[str, Any], setup: LlamaCppSetup, estimate: MemoryEstimate, opened: Opened
) -> Iterator[str]:
    """What to know before running the command of an estimate."""
    if note := estimate_source(values, opened).note:
        yield note
    facts, geometry = LoadFacts.of(estimate), opened.model.geometry
    at_once = facts.n_ubatch
    if setup.embeddings and embeds_in_one_batch(geometry) and at_once < facts.n_ctx_seq:
        yield f"texts over {at_once:,} tokens are refused, because a text is computed in one batch (-b, -ub)"
    if "repack" not in values:  # neither counted nor turned off
        yield from repack_notes(repacked_bytes(opened.model, setup))


def values_on_cards(cards: Sequence[Device], *, named: bool) -> dict[str, Any]:  # noqa: ARG001
    """The flags for these cards."""
    memory = tuple(card.free_bytes for card in cards)
    return {"backend": backend_name(cards[0]), "device_memory": memory}
