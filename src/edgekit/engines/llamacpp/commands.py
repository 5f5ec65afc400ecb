"""A verdict -> its flags, and the commands that start llama.cpp, Ollama or LM Studio with them.

Flags as in common/arg.cpp @ b21e4de.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.bill.types import (
    F16,
    LAYERS_UNKNOWN,
    Drafter,
    MemoryEstimate,
    Placement,
    Status,
    Verdict,
)
from edgekit.engines.commands import (
    COMMAND,
    FILE,
    HUB_PAGES,
    LM_STUDIO_CONTEXT,
    LM_STUDIO_OFFLOAD,
    LM_STUDIO_PARALLEL,
    OLLAMA,
    Command,
    LmStudioSetting,
    Startup,
    leaves_some,
    lm_studio_texts,
    parsed,
    shell_text,
)
from edgekit.engines.llamacpp.architectures import DEFAULT_MIX
from edgekit.engines.llamacpp.estimate import growth_limits, repacked_bytes
from edgekit.engines.llamacpp.flags import REPEATED, command_words, keys_of
from edgekit.engines.llamacpp.model_source import (
    NO_PROJECTOR,
    PLACEHOLDER_DRAFT,
    PLACEHOLDER_FILE,
    PLACEHOLDER_PROJECTOR,
    TEXT_ONLY,
    estimate_source,
    gguf_source,
    has_own_file,
    model_draft_words,
    model_source,
)
from edgekit.engines.llamacpp.placements import backend_name, devices, pinned
from edgekit.engines.llamacpp.setups import placement as values_of_placement
from edgekit.engines.llamacpp.setups import setup as read_setup
from edgekit.engines.llamacpp.setups import this_cpu, values
from edgekit.engines.llamacpp.types import (
    ALL_LAYERS,
    LlamaCppSetup,
    LlamaMode,
    LoadFacts,
    SplitMode,
)
from edgekit.engines.llamacpp.weights import has_experts_on_host
from edgekit.engines.protocol import Offload
from edgekit.errors import printable
from edgekit.index.repositories import Form, repository_at
from edgekit.machine.types import HOST, Device, Vendor
from edgekit.model.types import Model, block_count, embeds_in_one_batch
from edgekit.sources.reference import HubModel
from edgekit.sources.types import Container, ModelFiles, Origin
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.model import OpenModel


PLACEMENT, DEVICES = keys_of("placement"), keys_of("devices", "servers")
LIMITS, CHOSEN = keys_of("batch", "server"), PLACEMENT | keys_of("cache", "weights")


def commands(startup: Startup) -> Iterator[Command]:
    """Commands for llama.cpp, Ollama and LM Studio. The latter two cannot express a given -ot, -sm or --rpc."""
    setup, source = LlamaCppSetup.of(startup.setup), model_source(startup)
    card_notes = _card_notes(startup)
    notes = [source.note, *card_notes] if source.note else card_notes
    if NO_PROJECTOR in source.words and not has_own_file(startup):  # a vision model
        notes = [*notes, TEXT_ONLY]
    model_words = source.words
    is_given = startup.given.get("mmproj", "auto") != "auto"
    if PLACEHOLDER_FILE in model_words and startup.has_part("projector") and not is_given:
        model_words = [*model_words, "--mmproj", PLACEHOLDER_PROJECTOR]
        notes = [*notes, f"replace {PLACEHOLDER_PROJECTOR} with the mmproj file next to it"]
    flags = started(startup.verdict, startup.given)
    server = ["llama-server", *model_words, *command_words(flags, setup.rules)]
    server_notes = list(notes)
    copy_bytes, copy_fits = repacking(startup.verdict)
    if copy_fits and "repack" not in startup.given:
        server_notes += repack_notes(copy_bytes)
    if PLACEHOLDER_DRAFT in server:
        server_notes.append(
            f"replace {PLACEHOLDER_DRAFT} with the file of {startup.given['draft_model']}"
        )
    serve = startup.command(
        "llama-server", "llama-server", server, startup.environment, server_notes
    )
    yield replace(serve, served_name="")
    if not setup.embeddings:  # llama-cli does not return them
        cli_flags = flags | {"context": startup.context_tokens, "parallel": 1, "unified": None}
        words = ["llama-cli", *model_words, *command_words(cli_flags, setup.rules)]
        yield startup.command("llama-cli", "llama-cli", words, startup.environment, notes)
    moved = setup.overrides and not startup.placement.by_tensor
    if not moved and not setup.servers and setup.split_mode is SplitMode.LAYER:
        yield from ollama_commands(startup, card_notes)
        yield from lm_studio_commands(startup)


def unplaced_commands(label: str, mix: str, verdict: Verdict) -> tuple[Command, ...]:
    """Commands for a model whose layers are not known: llama.cpp and Ollama fit them to the free memory."""
    if not verdict.can_load:
        return ()
    source, tag = gguf_source(None, mix, label), repository_at(label, Form.OLLAMA, mix)
    setup = LlamaCppSetup.of(verdict.way.setup)
    load = replace(verdict.load, context_tokens=verdict.context_tokens)
    kept = {"context", "embeddings", *keys_of("cache")}  # the rest depends on the layers
    flags = {key: value for key, value in values(load, setup).items() if key in kept}
    words = ["llama-server", *source.words, *command_words(flags, setup.rules)]
    notes = (source.note,) if source.note else ()
    texts = {("llama-server", "llama-server", notes): words}
    if tag is not None:
        texts[OLLAMA, "Ollama", ()] = ["ollama", "run", tag.name]
    return tuple(
        Command(
            program=program,
            name=name,
            kind=COMMAND,
            text=shell_text(text, {}, verdict.machine.system),
            notes=why,
            words=tuple(text),
            served_name="" if program == "llama-server" else None,
        )
        for (program, name, why), text in texts.items()
    )


def _card_notes(startup: Startup) -> list[str]:
    """Notes on how to keep llama.cpp off the cards that the plan does not use."""
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
    load, setup = verdict.load, LlamaCppSetup.of(verdict.way.setup)
    on_cpu = not setup.has_device  # without -devd it would be on a GPU
    flags: dict[str, Any] = {"draft_device": "none" if on_cpu else None}
    if drafter.model is None:
        return command_words({**flags, "spec_type": "draft-mtp"}, setup.rules)
    name = f"{drafter.name.partition(' ')[0]}:{drafter.mix or DEFAULT_MIX}"
    flags |= {
        "draft_type_k": load.cache_k,
        "draft_type_v": load.cache_v,
        "draft_gpu_layers": None if on_cpu else "all",
    }
    return [*model_draft_words(name, is_known=True), *command_words(flags, setup.rules)]


def loads_projector(files: ModelFiles, values: Mapping[str, Any]) -> bool:
    """Whether -hf downloads and loads an mmproj file of the model's repository (common/arg.cpp)."""
    from_hub = files.origin in {Origin.HUB, Origin.HUB_CACHE}
    is_given = values.keys() & {"mmproj", "no_mmproj"}
    return (
        from_hub and files.container is Container.GGUF and bool(files.projectors) and not is_given
    )


def estimate_command(
    values: Mapping[str, Any], setup: LlamaCppSetup, estimate: MemoryEstimate, opened: OpenModel
) -> tuple[list[str], list[str]]:
    """The command line of an estimate, and its notes."""
    _, stated = read_setup(values)
    program = "llama-server" if stated.mode is LlamaMode.SERVER else "llama-cli"
    facts = LoadFacts.of(estimate)
    is_counted = any(line.part == "projector" for line in estimate.lines)
    source = estimate_source(values, opened, loads_projector=is_counted)
    placed = {} if estimate.backend == "cpu" else values_of_placement(stated)
    context = values.get("context") or facts.n_ctx
    flags = {**placed, **values, "context": context, "backend": estimate.backend}
    notes = [source.note] if source.note else []
    in_one_batch = setup.embeddings and embeds_in_one_batch(opened.model.geometry)
    if in_one_batch and facts.n_ubatch < facts.n_ctx_seq:
        notes.append(
            f"texts over {facts.n_ubatch:,} tokens are refused, because a text is computed in one batch (-b, -ub)"
        )
    if "repack" not in values:  # repacking is neither billed nor disabled
        notes += repack_notes(repacked_bytes(opened.model, setup))
    return [program, *source.words, *command_words(flags, stated.rules)], notes


def values_on_cards(cards: Sequence[Device], _named: Sequence[str]) -> dict[str, Any]:
    """Flag values for these cards."""
    memory = tuple(card.free_bytes for card in cards)
    return {"backend": backend_name(cards[0]), "device_memory": memory}


def repacking(verdict: Verdict) -> tuple[int, bool]:
    """Bytes of the repacked copy of weights that CPU builds keep, and whether it fits. 0 bytes if the bill includes it
    already; llama.cpp is started with -nr if it does not fit.
    """
    setup = LlamaCppSetup.of(verdict.way.setup)
    if setup.repack or verdict.variant is None:
        return 0, True
    copy_bytes = repacked_bytes(verdict.variant.model, setup)
    uses = [use for use in verdict.uses if HOST in use.budget.pools]
    fuller = (replace(use, required_bytes=use.required_bytes + copy_bytes) for use in uses)
    return copy_bytes, not copy_bytes or all(use.status is not Status.FAILED for use in fuller)


def repack_notes(size_bytes: int) -> list[str]:
    """A note on the repacked copy of the output weights; none if there is no copy."""
    if size_bytes <= 0:
        return []
    copy = "default CPU builds keep a repacked copy of the output weights"
    return [f"{copy}: +{format_bytes(size_bytes)} of RAM; -nr turns it off"]


def started(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    """All flags that start llama.cpp exactly as the verdict assumes. `given`: the user's flags.

    Context and layers are always set: otherwise llama.cpp fits them to the free memory.
    """
    load, setup = verdict.load, LlamaCppSetup.of(verdict.way.setup)
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
    flags = {
        key: value for key, value in values(load, setup).items() if key not in REPEATED | on_device
    }
    flags |= {
        "backend": setup.backend.value,
        **values_of_placement(setup),
        **growth_limits(verdict),
    }
    if not repacking(verdict)[1]:
        flags["repack"] = False
    return flags | {key: value for key, value in given.items() if key in REPEATED}


def settle(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    """The user's flags and those that the verdict adds: context, placement, cache types and server limits."""
    flags = started(verdict, given)
    limits = {key: flags[key] for key in flags if key in LIMITS and key not in given}
    chosen = {key: flags[key] for key in flags if key in CHOSEN}
    settled = {**limits, **given, "context": verdict.context_tokens, **chosen}
    if not verdict.way.cards and devices(verdict.machine):
        settled["backend"] = "cpu"  # otherwise it uses the devices of the machine
    return settled


def placement_flags(
    model: Model, placement: Placement, cards: tuple[Device, ...]
) -> dict[str, Any]:
    """The plan's placement as flags for a machine with these cards; unused cards get a share of 0."""
    if not placement.cards:
        return {"backend": "cpu"}
    setup = LlamaCppSetup.of(pinned(model, placement).setup)
    if len(cards) > 1:
        shares = dict(zip(placement.cards, setup.tensor_split or (1.0,), strict=True))
        setup = replace(setup, tensor_split=tuple(shares.get(card, 0.0) for card in cards))
    return values_of_placement(setup)


def machine_flags(placement: Placement) -> dict[str, Any]:
    """The backend, the CPU that weights are repacked for, and each card's free memory if there are several."""
    setup = LlamaCppSetup.of(placement.setup)
    # Without RPC devices, which come first: --rpc has their memory.
    local_cards = placement.cards[len(setup.servers) :]
    flags: dict[str, Any] = (
        {} if setup.servers and not local_cards else {"backend": setup.backend.value}
    )
    if setup.repack or setup.cpu is not this_cpu():
        flags["cpu"] = setup.cpu.value
    if len(placement.cards) > 1:
        if local_cards:
            flags["device_memory"] = tuple(card.free_bytes for card in local_cards)
        if setup.tensor_split:  # cards without a share get nothing
            missing = len(placement.cards) - len(setup.tensor_split)
            flags["tensor_split"] = (*setup.tensor_split, *[0.0] * missing)
    return flags


def offload(verdict: Verdict) -> Offload:
    """Which parts of the model are not on the devices."""
    placement, variant = verdict.way, verdict.variant
    setup = LlamaCppSetup.of(placement.setup)
    if not placement.cards:
        return Offload()
    layers = () if variant is None else variant.model.geometry.layers
    layers_text, layers_and_head = "", len(layers) + 1
    if variant is not None and setup.n_gpu_layers < layers_and_head:
        layers_text = f"{setup.n_gpu_layers} of {layers_and_head} layers"
        if verdict.doubt == LAYERS_UNKNOWN:  # those of a stand-in
            layers_text = f"about {setup.n_gpu_layers / layers_and_head:.0%} of the layers"
    routed = [layer.index for layer in layers if layer.experts is not None]
    moved = sum(map(has_experts_on_host(setup), routed))
    experts = f"the experts of {moved} layers" if moved else ""
    if setup.overrides and not placement.by_tensor:
        experts = "the tensors of -ot"
    elif routed and moved == len(routed) and not placement.by_tensor:
        experts = "all experts"
    return Offload(
        layers=layers_text,
        experts=experts,
        cache=not setup.offload_kqv,
        everything=setup.n_gpu_layers == 0,
    )


_PATHS = ("/", "./", "../", "~")
# docs/faq.mdx: cache types, most accurate first, with bits per value
_CACHE_BITS = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}
_DEFAULT_CACHE, _SMALLEST_CACHE = "f16", "q4_0"
# llama-server reads these if no flag is given, and Ollama passes on its environment.
_GROWTH_VARIABLES = {
    "cache_ram": "LLAMA_ARG_CACHE_RAM",
    "ctx_checkpoints": "LLAMA_ARG_CTX_CHECKPOINTS",
}


def ollama_commands(startup: Startup, card_notes: list[str]) -> Iterator[Command]:
    """The commands that start Ollama's server and run the model, with a Modelfile unless Ollama's defaults already
    give the planned placement.
    """
    settings = ollama_settings(startup.verdict)
    environment = {**startup.environment, **settings.environment}
    notes = [*_ollama_notes(startup.verdict), *card_notes]
    yield startup.command(OLLAMA, "Ollama server", ["ollama", "serve"], environment, notes)

    source, parameters = _modelfile_source(startup), settings.parameters
    has_default_layers = settings.has_default_layers or (
        parameters.get("num_gpu") == 0 and not startup.machine.devices
    )
    has_default_parameters = parameters.keys() <= {"num_ctx", "num_gpu"}
    if has_default_layers and has_default_parameters and not source.startswith(_PATHS):
        yield startup.command(OLLAMA, "Ollama", ["ollama", "run", source])
        return
    lines = [f"FROM {printable(source)}"]  # one line, even for odd file names
    lines += [f"PARAMETER {name} {json.dumps(value)}" for name, value in parameters.items()]
    note = model_source(startup).note
    yield Command(
        program=OLLAMA,
        name="Ollama Modelfile",
        kind=FILE,
        text="\n".join(lines) + "\n",
        notes=(note,) if note else (),
    )
    # A name in Ollama's spelling: lower case, digits, dots, dashes.
    plain = startup.label.rsplit("/", maxsplit=1)[-1].removesuffix(".gguf").lower()
    name = re.sub(r"[^a-z0-9._-]", "-", plain).strip("._-")[:80] or "planned"
    steps = (["ollama", "create", name, "-f", "Modelfile"], ["ollama", "run", name])
    lines = [startup.command(OLLAMA, "Ollama", words).text for words in steps]
    yield Command(program=OLLAMA, name="Ollama", kind=COMMAND, text="\n".join(lines))


class OllamaSettings(NamedTuple):
    """What a verdict is in Ollama: the environment of its server, and the parameters of the model."""

    environment: dict[str, str]
    parameters: dict[str, int | bool]
    cache: str  # the one type of all caches
    has_default_layers: bool  # Ollama would place the layers in the same way by itself


def ollama_settings(verdict: Verdict) -> OllamaSettings:
    """The settings for a verdict. The context is that of one request: Ollama multiplies it by their number."""
    load, placement = verdict.load, verdict.way
    setup = LlamaCppSetup.of(placement.setup)
    context_tokens = verdict.context_tokens // verdict.streams
    # One cache type for K and V: the most accurate that is no larger than either.
    kinds = (load.cache_k, load.cache_v)
    smallest_bits = min(
        _CACHE_BITS[_DEFAULT_CACHE] if kind is None else kind.bits for kind in kinds
    )
    cache = next(
        (name for name, bits in _CACHE_BITS.items() if bits <= smallest_bits), _SMALLEST_CACHE
    )
    environment = {"OLLAMA_CONTEXT_LENGTH": str(context_tokens)}
    environment["OLLAMA_NUM_PARALLEL"] = str(verdict.streams)
    if cache != _DEFAULT_CACHE:
        environment["OLLAMA_KV_CACHE_TYPE"] = cache
    if load.flash_attention is not None or cache != _DEFAULT_CACHE:
        environment["OLLAMA_FLASH_ATTENTION"] = "0" if load.flash_attention is False else "1"
    if len(placement.cards) > 1:
        environment["OLLAMA_SCHED_SPREAD"] = "1"
    limits = values(load, setup) | growth_limits(verdict)
    environment |= {
        variable: str(limits[key]) for key, variable in _GROWTH_VARIABLES.items() if key in limits
    }
    variant = verdict.variant
    layers_and_head = 1 + (0 if variant is None else block_count(variant.model.geometry))
    num_gpu: int | None = min(setup.n_gpu_layers, layers_and_head)
    if not setup.has_device:
        num_gpu = 0
    elif _moves_experts(setup):
        num_gpu = None  # Ollama places whole layers itself
    parameters: dict[str, int | bool] = {"num_ctx": context_tokens}
    if num_gpu is not None:
        parameters["num_gpu"] = num_gpu
    if load.microbatch_tokens:
        parameters["num_batch"] = load.microbatch_tokens
    if not setup.use_mmap:
        parameters["use_mmap"] = False
    return OllamaSettings(environment, parameters, cache, num_gpu in {None, layers_and_head})


def _moves_experts(setup: LlamaCppSetup) -> bool:
    """True if a flag moves experts or single tensors to RAM."""
    return bool(setup.cpu_moe or setup.n_cpu_moe or setup.overrides)


def _modelfile_source(startup: Startup) -> str:
    """The model as a Modelfile names it: a tag of Ollama's library, hf.co/org/name:quant, or a file."""
    files = startup.files
    if files is not None and files.origin in {Origin.OLLAMA, Origin.OLLAMA_STORE}:
        return files.label
    if not has_own_file(startup):
        mix = LlamaCppSetup.of(startup.setup).mix or startup.variant.name
        tag = repository_at(startup.label, Form.OLLAMA, mix)
        if tag is not None:
            return tag.name
    flag, word, *_ = model_source(startup).words
    if flag == "-hf":
        return f"hf.co/{word}"
    if flag == "-mu":
        return f"./{word.rsplit('/', maxsplit=1)[-1].partition('?')[0]}"
    return word if word.startswith(_PATHS) or word[1:2] == ":" else f"./{word}"


def _ollama_notes(verdict: Verdict) -> Iterator[str]:
    """Notes on settings that Ollama lacks."""
    yield from plan_problems(verdict)
    sequences = LoadFacts.of(verdict.estimate).n_seq_max
    if sequences > 1 and verdict.streams == 1:
        yield f"one request at a time: in Ollama each of {sequences} parallel requests would have its own cache"


def plan_problems(verdict: Verdict) -> list[str]:
    """What of a plan Ollama cannot follow, so that it would take other memory than planned."""
    load, setup, problems = verdict.load, LlamaCppSetup.of(verdict.way.setup), []
    cache = ollama_settings(verdict).cache
    planned = {
        _DEFAULT_CACHE if kind is None else kind.name for kind in (load.cache_k, load.cache_v)
    }
    if planned != {cache}:
        types = ", ".join(_CACHE_BITS)
        problems.append(
            f"Ollama uses one cache type ({types}) for keys and values of all models: {cache} here"
        )
    if _moves_experts(setup):
        problems.append(
            "Ollama cannot move experts alone to RAM: without num_gpu it places whole layers itself"
        )
    if setup.tensor_split:
        problems.append("Ollama splits layers across GPUs itself; it has no -ts")
    if not setup.offload_kqv:
        problems.append("Ollama has no --no-kv-offload: the cache is where the layers are")
    return problems


def lm_studio_commands(startup: Startup) -> Iterator[Command]:
    """The settings and commands that load the model in LM Studio."""
    source, files = model_source(startup), startup.files
    model = source.words[1].partition(":")[0]
    if has_own_file(startup):
        model = files.label if files is not None else startup.variant.reference
        reference = parsed(model, is_name=files is not None and files.origin.is_remote)
        model = reference.repo if isinstance(reference, HubModel) else model
    notes = [source.note] if source.note else []
    if startup.verdict.streams > 1:
        notes.append(
            "LM Studio uses one cache for all requests, as large as the planned caches together"
        )
    if "cache_ram" in growth_limits(startup.verdict):
        notes.append(
            "LM Studio has no setting for llama-server's prompt cache: it can grow to 8 GiB of RAM"
        )
    download: list[str] = []
    if source.words[0] == "-hf":
        repository, _, quant = source.words[1].partition(":")
        # @ selects the quantisation, of a repository with several
        download = [f"{HUB_PAGES}{repository}{quant and f'@{quant}'}", "--gguf"]
    settings = list(_lm_studio_settings(startup))
    yield from lm_studio_texts(startup, settings, model=model, download=download, notes=notes)


def _lm_studio_settings(startup: Startup) -> Iterator[LmStudioSetting]:
    """LM Studio's load settings for the planned context, placement and cache."""
    setup = LlamaCppSetup.of(startup.setup)
    load, layers = startup.load, block_count(startup.variant.model.geometry)
    facts = LoadFacts.of(startup.verdict.estimate)
    yield LmStudioSetting("Context Length", LM_STUDIO_CONTEXT, facts.n_ctx)
    yield LmStudioSetting("", "llm.load.llama.autoFit", False)  # otherwise it fits layers by itself
    # The output layer goes with the last block.
    offloaded = setup.n_gpu_layers if setup.has_device else 0
    yield _layer_setting("GPU Offload", LM_STUDIO_OFFLOAD, offloaded, layers)
    if any(layer.experts for layer in startup.variant.model.geometry.layers):
        blocks = 0
        if setup.cpu_moe and setup.has_device:
            blocks = ALL_LAYERS
        elif setup.has_device:
            blocks = sum(map(has_experts_on_host(setup), range(layers)))  # whole layers only
            # LM Studio moves the first layers' experts, not the last as -ot does: that frees less of the GPU.
            if startup.placement.by_tensor and not setup.n_cpu_moe and len(setup.overrides) == 1:
                blocks += 1
        key = "llm.load.numCpuExpertLayersRatio"
        yield _layer_setting("Layers with MoE weights on the CPU", key, blocks, layers)
    on_gpu = setup.offload_kqv
    yield LmStudioSetting(
        "Offload KV Cache to GPU Memory", "llm.load.offloadKVCacheToGpu", on_gpu, is_default=on_gpu
    )
    yield LmStudioSetting("Flash Attention", "llm.load.llama.flashAttention", facts.flash_attn)
    for name, kind in (("K", load.cache_k), ("V", load.cache_v)):
        yield LmStudioSetting(
            f"{name} Cache Quantization Type",
            f"llm.load.llama.{name.lower()}CacheQuantizationType",
            {"checked": kind is not None, "value": "f16" if kind is None else kind.name},
            "off (f16)" if kind is None else kind.name,
            is_default=kind is None,
        )
    yield LmStudioSetting("Max Concurrent Predictions", LM_STUDIO_PARALLEL, facts.n_seq_max)
    yield LmStudioSetting("Unified KV Cache", "llm.load.useUnifiedKvCache", facts.kv_streams == 1)
    yield LmStudioSetting("Evaluation Batch Size", "llm.load.llama.evalBatchSize", facts.n_batch)
    yield LmStudioSetting("Physical Batch Size", "llm.load.llama.physicalBatchSize", facts.n_ubatch)
    mapped = setup.use_mmap
    yield LmStudioSetting("Try mmap()", "llm.load.llama.tryMmap", mapped, is_default=mapped)
    limits = growth_limits(startup.verdict)
    if "ctx_checkpoints" in limits:
        key = "llm.load.llama.contextCheckpoints"
        yield LmStudioSetting("Context Checkpoints", key, limits["ctx_checkpoints"])
    yield from _split_setting(startup)


def _layer_setting(name: str, key: str, count: int, layers: int) -> LmStudioSetting:
    """A setting stored as a share of the layers, which the screen shows as a number."""
    share: str | float
    if count <= 0:
        share = "off"
    elif count > layers:
        share = "max"
    else:
        share = count / layers
    shown = f"{min(count, layers)} of {layers} layers"
    return LmStudioSetting(name, key, share, shown, is_default=share == "off")


def _split_setting(startup: Startup) -> Iterator[LmStudioSetting]:
    """Shares of all visible cards in order of their numbers; 0: the card is not used."""
    used, split = startup.placement.cards, LlamaCppSetup.of(startup.setup).tensor_split
    all_cards = devices(startup.machine)
    if not used or (len(used) == len(all_cards) and not split):
        return
    shares = split or tuple(float(card.free_bytes) for card in used)
    by_card = dict(zip((card.index for card in used), shares, strict=False))
    ratio = [round(by_card.get(card.index, 0.0), 3) for card in all_cards]
    if len(used) == 1:
        ratio = [float(card.index == used[0].index) for card in all_cards]
    config = {"strategy": "custom", "disabledGpus": [], "priority": [], "customRatio": ratio}
    shown = "custom, " + ":".join(f"{share:g}" for share in ratio)
    yield LmStudioSetting("GPU split", "load.gpuSplitConfig", config, shown)
