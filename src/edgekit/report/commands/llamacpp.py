"""A plan for llama.cpp -> llama-server and llama-cli. Flags as in common/arg.cpp @ b21e4de."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgekit.bill.verdict import Status
from edgekit.engines.llamacpp.as_gguf import DEFAULT_MIX
from edgekit.engines.llamacpp.estimate import repacked_bytes
from edgekit.engines.llamacpp.growth import growth_limits
from edgekit.engines.llamacpp.types import ALL_LAYERS, Backend, DeviceSlot, SplitMode
from edgekit.engines.model_words import (
    NO_PROJECTOR,
    TEXT_ONLY,
    GgufSource,
    gguf_source,
    typed_gguf_words,
)
from edgekit.engines.model_words import draft_words as model_words_of_draft
from edgekit.machine.types import HOST
from edgekit.plan.planned import Plan
from edgekit.report.commands import cards
from edgekit.report.commands.types import Command, Planned
from edgekit.units import format_bytes

ALL = "all"
OWN_CACHE = "f16"  # needs no flag
_GROWTH = {"cache_ram": "-cram", "ctx_checkpoints": "-ctxcp"}


def ready(planned: Planned) -> Iterator[Command]:
    plan = planned.plan
    model = model_words(planned)
    notes = [*source_notes(planned), *cards.notes(planned)]
    if NO_PROJECTOR in model and not has_own_file(planned):  # a catalog model that takes pictures
        notes.append(TEXT_ONLY)
    around = cards.environment(planned)
    total = plan.result.context_tokens
    server = ["llama-server", *model, "-c", str(total), *_sequences(planned), *_rest(planned)]
    yield planned.command("llama-server", server, around, [*notes, *_repack_notes(planned)])
    if planned.setup.embeddings:
        return  # llama-cli answers, and embeds nothing
    alone = ["llama-cli", *model, "-c", str(plan.context_tokens), "-np", "1", *_rest(planned)]
    yield planned.command("llama-cli", alone, around, notes)


def model_words(planned: Planned) -> list[str]:
    """The file, the repository, or a placeholder where no repository is known."""
    return _source(planned).words


def _source(planned: Planned) -> GgufSource:
    variant, files = planned.plan.variant, planned.files
    has_projector = planned.has_part("projector")
    if not has_own_file(planned):
        mix = planned.setup.mix or variant.name
        return gguf_source(files, mix, planned.plan.wish.label, projector=has_projector)
    if files is not None and variant.reference in {"", files.reference}:
        words = gguf_source(files).words
    else:
        is_name = files is not None and files.origin.is_remote
        words = typed_gguf_words(variant.reference, is_name=is_name)
    return GgufSource([*words, NO_PROJECTOR] if words[0] == "-hf" and not has_projector else words)


def has_own_file(planned: Planned) -> bool:
    """Whether what was named is a GGUF as it was planned, or the plan chose a file of a repository."""
    if planned.setup.mix is not None:
        return False
    from edgekit.sources.types import Container

    files = planned.files
    stored = files is not None and files.container is Container.GGUF
    return bool(planned.plan.variant.reference) or stored


def source_notes(planned: Planned) -> list[str]:
    note = _source(planned).note
    return [note] if note else []


def _sequences(planned: Planned) -> Iterator[str]:
    """llama-server's own are four that share one cache; so many of them have one each unless it is said."""
    load = planned.plan.load
    if load.sequences:
        yield from ("-np", str(load.sequences))
        if load.unified:
            yield "-kvu"
    elif load.unified is False:
        yield "-no-kvu"


def _rest(planned: Planned) -> list[str]:
    return [
        *_placement(planned),
        *_cache(planned),
        *_batches(planned),
        *_host(planned),
        *planned.more,
    ]


def _placement(planned: Planned) -> Iterator[str]:
    """Context and layers are always said: llama.cpp would fit what is not to the memory it finds."""
    setup = planned.setup
    if setup.backend is Backend.CPU:
        yield from ("-dev", "none")
        return
    if setup.servers:
        yield from ("--rpc", ",".join(dict.fromkeys(map(endpoint, setup.servers))))
    yield from ("-ngl", ALL if setup.n_gpu_layers >= ALL_LAYERS else str(setup.n_gpu_layers))
    if setup.split_mode is not SplitMode.LAYER:
        yield from ("-sm", setup.split_mode.value)
    if setup.main_gpu:
        yield from ("-mg", str(setup.main_gpu))
    if setup.overrides:  # before -ncmoe: the first that matches a tensor decides
        yield from ("-ot", ",".join(f"{one.pattern}={one.buffer}" for one in setup.overrides))
    if setup.cpu_moe:
        yield "-cmoe"
    elif setup.n_cpu_moe:
        yield from ("-ncmoe", str(setup.n_cpu_moe))
    if setup.tensor_split:
        yield from ("-ts", ",".join(f"{share:g}" for share in setup.tensor_split))
    if not setup.offload_kqv:
        yield "-nkvo"


def endpoint(server: DeviceSlot) -> str:
    """'RPC0[10.0.0.5:50052]' -> '10.0.0.5:50052'."""
    return server.rpc.partition("[")[2].removesuffix("]")


def _cache(planned: Planned) -> Iterator[str]:
    load = planned.plan.load
    for flag, kind in (("-ctk", load.cache_k), ("-ctv", load.cache_v)):
        if kind is not None and kind.name != OWN_CACHE:
            yield from (flag, kind.name)
    flash = load.flash_attention
    if flash is None and load.cache_v is not None and load.cache_v.is_quantized:
        flash = True  # without it llama.cpp keeps no quantised values
    if flash is not None:
        yield from ("-fa", "on" if flash else "off")
    if load.full_window:
        yield "--swa-full"


def _batches(planned: Planned) -> Iterator[str]:
    load = planned.plan.load
    for flag, tokens in (("-b", load.batch_tokens), ("-ub", load.microbatch_tokens)):
        if tokens is not None:
            yield from (flag, str(tokens))


def draft_words(plan: Plan) -> list[str]:
    """The flags that add the proposed draft model, in the order in which llama.cpp's command has them."""
    drafter, load, setup = plan.drafter, plan.load, plan.result.way.setup
    if drafter is None:
        return []
    alone = ["-devd", "none"] if setup.backend is Backend.CPU else []  # else it would be on a GPU
    if drafter.model is None:
        return ["--spec-type", "draft-mtp", *alone]
    name = f"{drafter.name.partition(' ')[0]}:{drafter.changes.get('mix', DEFAULT_MIX)}"
    words = model_words_of_draft(name, is_catalog=True)
    for flag, kind in (("-ctkd", load.cache_k), ("-ctvd", load.cache_v)):
        words += [] if kind is None else [flag, kind.name]
    return [*words, *(alone or ["-ngld", ALL])]


def _host(planned: Planned) -> Iterator[str]:
    """What keeps the host within what was planned."""
    setup = planned.setup
    yield from setup.load_words
    if setup.embeddings:
        yield "--embeddings"
    if _rearranged(planned)[1] and "-nr" not in planned.more:
        yield "-nr"
    for key, number in growth_limits(planned.plan.result).items():
        if _GROWTH[key] not in planned.more:
            yield from (_GROWTH[key], str(number))


def _rearranged(planned: Planned) -> tuple[int, bool]:
    """What CPU builds need more for repacked weights, and whether that is too much."""
    if planned.setup.repack:
        return 0, False  # in the bill already
    more = repacked_bytes(planned.plan.variant.model, planned.setup)
    uses = [use for use in planned.plan.result.uses if HOST in use.budget.pools]
    fuller = (replace(use, required_bytes=use.required_bytes + more) for use in uses)
    return more, bool(more) and any(use.status is Status.FAILED for use in fuller)


def _repack_notes(planned: Planned) -> list[str]:
    more, avoided = _rearranged(planned)
    if not more or avoided:
        return []
    copy = f"default CPU builds keep a repacked copy of the output weights: +{format_bytes(more)} of RAM"
    return [f"{copy}; -nr turns it off"]
