"""llama-server and llama-cli, started as llama.cpp was judged. Flags as in common/arg.cpp @ b21e4de."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.bill.task import Drafter, Placement
from edgekit.bill.types import MemoryEstimate
from edgekit.bill.verdict import Verdict
from edgekit.engines.commands import Command, Startup, leaves_some
from edgekit.engines.flags import flag_words
from edgekit.engines.llamacpp import ollama
from edgekit.engines.llamacpp.budget import backend_name
from edgekit.engines.llamacpp.estimate import repacked_bytes
from edgekit.engines.llamacpp.flags import FLAGS, REPEATED
from edgekit.engines.llamacpp.flags import setup as read_setup
from edgekit.engines.llamacpp.growth import growth_limits
from edgekit.engines.llamacpp.lm_studio import lm_studio_commands
from edgekit.engines.llamacpp.mixes import DEFAULT_MIX
from edgekit.engines.llamacpp.model_source import estimate_source, has_own_file, model_source
from edgekit.engines.llamacpp.settle import (
    OWN_CACHE,
    Repacking,
    machine_flags,
    offload,
    repack_notes,
    repacking,
    settle,
)
from edgekit.engines.llamacpp.types import (
    ALL_LAYERS,
    Backend,
    DeviceSlot,
    LlamaCppSetup,
    SplitMode,
)
from edgekit.engines.model_words import (
    NO_PROJECTOR,
    PLACEHOLDER_DRAFT,
    TEXT_ONLY,
    model_draft_words,
)
from edgekit.machine.types import Device, Vendor
from edgekit.model.types import embeds_in_one_batch

if TYPE_CHECKING:
    from edgekit.model.open import Opened

__all__ = [
    "commands",
    "draft_words",
    "endpoint",
    "estimate_notes",
    "estimate_words",
    "machine_flags",
    "offload",
    "settle",
    "values_on_cards",
]

ALL = "all"


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
    repacked = repacking(startup.verdict)
    rest = [*_placed_words(startup, repacked), *_given_words(startup.given)]
    total, load = ["-c", str(startup.verdict.context_tokens)], startup.load
    # llama-server's default is 4 sequences that share one cache; given a number, each has its own.
    sequences = {"parallel": load.sequences, "unified": load.unified or None}
    if not load.sequences:
        sequences = {"unified": False if load.unified is False else None}
    server = ["llama-server", *source.words, *total, *_words(sequences), *rest]
    told = list(notes)
    if repacked.fits and "repack" not in startup.given:
        told += repack_notes(repacked.size_bytes)
    if PLACEHOLDER_DRAFT in server:
        told.append(f"replace {PLACEHOLDER_DRAFT} with the file of {startup.given['draft_model']}")
    yield startup.command("llama-server", "llama-server", server, around, told)
    if startup.setup.embeddings:
        return  # llama-cli has no embeddings
    alone = ["llama-cli", *source.words, "-c", str(startup.context_tokens), "-np", "1", *rest]
    yield startup.command("llama-cli", "llama-cli", alone, around, notes)


def _placed_words(startup: Startup, repacked: Repacking) -> list[str]:
    """All that load and setup say. Context and layers are always given: llama.cpp would fit them to free memory."""
    load, setup = startup.load, startup.setup
    flash = load.flash_attention
    if flash is None and load.cache_v is not None and load.cache_v.is_quantized:
        flash = True  # llama.cpp quantises the values only with it
    types = {
        key: kind
        for key, kind in (("type_k", load.cache_k), ("type_v", load.cache_v))
        if kind is not None and kind.name != OWN_CACHE
    }
    before = {
        **types,
        "flash_attn": None if flash is None else "on" if flash else "off",
        "swa_full": load.full_window or None,
        "batch": load.batch_tokens,
        "ubatch": load.microbatch_tokens,
    }
    limits: dict[str, Any] = dict(growth_limits(startup.verdict))
    if not repacked.fits:
        limits = {"repack": False, **limits}
    host = {
        "embeddings": setup.embeddings or None,
        **{key: value for key, value in limits.items() if key not in startup.given},
    }
    return [*_device_words(setup), *_words(before), *setup.load_words, *_words(host)]


def _device_words(setup: LlamaCppSetup) -> list[str]:
    if setup.backend is Backend.CPU:
        return ["-dev", "none"]
    return _words({
        "rpc": tuple(dict.fromkeys(map(endpoint, setup.servers))) or None,
        "n_gpu_layers": ALL if setup.n_gpu_layers >= ALL_LAYERS else setup.n_gpu_layers,
        "split_mode": None if setup.split_mode is SplitMode.LAYER else setup.split_mode.value,
        "main_gpu": setup.main_gpu or None,
        # before -ncmoe: the first that matches a tensor decides
        "override_tensor": tuple(f"{one.pattern}={one.buffer}" for one in setup.overrides) or None,
        "cpu_moe": setup.cpu_moe or None,
        "n_cpu_moe": None if setup.cpu_moe else setup.n_cpu_moe or None,
        "tensor_split": tuple(f"{share:g}" for share in setup.tensor_split) or None,
        "offload_kqv": None if setup.offload_kqv else False,
    })  # fmt: skip


def _words(values: Mapping[str, Any]) -> list[str]:
    """The flags of those that are not None, in this order."""
    return [
        word
        for key, value in values.items()
        if value is not None
        for word in flag_words(FLAGS, {key: value})
    ]


def endpoint(server: DeviceSlot) -> str:
    """'RPC0[10.0.0.5:50052]' -> '10.0.0.5:50052'."""
    return server.rpc.partition("[")[2].removesuffix("]")


def _given_words(given: Mapping[str, Any]) -> list[str]:
    draft = given.get("draft_model")
    repeated = {key: value for key, value in given.items() if key in REPEATED}
    return [*(model_draft_words(draft) if draft is not None else ()), *flag_words(FLAGS, repeated)]


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
    alone = ["-devd", "none"] if setup.backend is Backend.CPU else []  # else it would be on a GPU
    if drafter.model is None:
        return ["--spec-type", "draft-mtp", *alone]
    name = f"{drafter.name.partition(' ')[0]}:{drafter.changes.get('mix', DEFAULT_MIX)}"
    types = {"draft_type_k": load.cache_k, "draft_type_v": load.cache_v}
    return [*model_draft_words(name, is_catalog=True), *_words(types), *(alone or ["-ngld", ALL])]


def estimate_words(
    values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened
) -> list[str]:
    """The command of an estimate."""
    program = "llama-server" if values.get("mode", "server") == "server" else "llama-cli"
    context = values.get("context") or dict(estimate.facts)["n_ctx"]
    _, setup = read_setup(values)
    rest = {key: value for key, value in values.items() if key not in {"draft_model", "mmap"}}
    words = [program, *estimate_source(values, opened).words, "-c", str(context)]
    words += [*flag_words(FLAGS, rest), *setup.load_words]
    words += model_draft_words(values["draft_model"]) if "draft_model" in values else []
    if estimate.backend == "cpu":
        return [*words, "-dev", "none"]
    return words if "n_gpu_layers" in values else [*words, "-ngl", ALL]


def estimate_notes(
    values: Mapping[str, Any], setup: LlamaCppSetup, estimate: MemoryEstimate, opened: Opened
) -> Iterator[str]:
    """What to know before running the command of an estimate."""
    if note := estimate_source(values, opened).note:
        yield note
    facts: dict[str, Any] = dict(estimate.facts)
    at_once, geometry = facts["n_ubatch"], opened.model.geometry
    if setup.embeddings and embeds_in_one_batch(geometry) and at_once < facts["n_ctx_seq"]:
        yield f"texts over {at_once:,} tokens are refused, because a text is computed in one batch (-b, -ub)"
    if "repack" not in values:  # neither counted nor turned off
        yield from repack_notes(repacked_bytes(opened.model, setup))


def values_on_cards(cards: Sequence[Device], *, named: bool) -> dict[str, Any]:  # noqa: ARG001
    """The flags for these cards."""
    memory = tuple(card.free_bytes for card in cards)
    return {"backend": backend_name(cards[0]), "device_memory": memory}
