"""llama.cpp as LM Studio runs it: the settings of a verdict."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.engines.commands import (
    LM_STUDIO_CONTEXT,
    LM_STUDIO_OFFLOAD,
    LM_STUDIO_PARALLEL,
    Command,
    LmStudioSetting,
    Startup,
    lm_studio_texts,
    parsed,
)
from edgekit.engines.llamacpp.estimate import growth_limits
from edgekit.engines.llamacpp.model_source import has_own_file, model_source
from edgekit.engines.llamacpp.placement import has_experts_on_host
from edgekit.engines.llamacpp.placements import devices
from edgekit.engines.llamacpp.types import ALL_LAYERS, Backend, LlamaCppSetup, LoadFacts
from edgekit.model.types import block_count
from edgekit.sources.reference import HubModel


def lm_studio_commands(startup: Startup) -> Iterator[Command]:
    yield from lm_studio_texts(
        startup, list(_settings(startup)), model=_model(startup), notes=list(_notes(startup))
    )


def _settings(startup: Startup) -> Iterator[LmStudioSetting]:
    setup: LlamaCppSetup = startup.setup
    load, layers = startup.load, block_count(startup.variant.model.geometry)
    facts = LoadFacts.of(startup.verdict.estimate)
    yield LmStudioSetting("Context Length", LM_STUDIO_CONTEXT, facts.n_ctx)
    yield LmStudioSetting("", "llm.load.llama.autoFit", False)  # else it would fit layers by itself
    yield _counted("GPU Offload", LM_STUDIO_OFFLOAD, _offload(setup, layers), layers)
    if any(layer.experts for layer in startup.variant.model.geometry.layers):
        experts = _experts(startup, layers)
        key = "llm.load.numCpuExpertLayersRatio"
        yield _counted("Layers with MoE weights on the CPU", key, experts, layers)
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
    yield from _split(startup)


def _counted(name: str, key: str, share: str | float, layers: int) -> LmStudioSetting:
    """A share of the layers; people set the number of them."""
    count = {"max": layers, "off": 0}[share] if isinstance(share, str) else round(share * layers)
    return LmStudioSetting(
        name, key, share, f"{count} of {layers} layers", is_default=share == "off"
    )


def _offload(setup: LlamaCppSetup, layers: int) -> str | float:
    """The share of the blocks; the output layer goes with the last of them."""
    if setup.backend is Backend.CPU or not setup.n_gpu_layers:
        return "off"
    if setup.n_gpu_layers >= ALL_LAYERS or setup.n_gpu_layers > layers:
        return "max"
    return setup.n_gpu_layers / layers


def _experts(startup: Startup, layers: int) -> str | float:
    setup: LlamaCppSetup = startup.setup
    if setup.backend is Backend.CPU:
        return "off"
    if setup.cpu_moe:
        return "max"
    blocks = sum(map(has_experts_on_host(setup), range(layers)))  # it divides no layer
    if startup.placement.by_tensor and not setup.n_cpu_moe and len(setup.overrides) == 1:
        blocks += 1  # -ot moves the last layers' experts, LM Studio the first ones', which frees less of the GPU
    return blocks / layers if blocks else "off"


def _split(startup: Startup) -> Iterator[LmStudioSetting]:
    """Shares of all cards that it sees, in the order of their numbers: a card with 0 is not used."""
    used, split = startup.placement.cards, startup.setup.tensor_split
    known = devices(startup.machine)
    if not used or (len(used) == len(known) and not split):
        return
    shares = split or tuple(float(card.free_bytes) for card in used)
    by_card = dict(zip((card.index for card in used), shares, strict=False))
    ratio = [round(by_card.get(card.index, 0.0), 3) for card in known]
    if len(used) == 1:
        ratio = [float(card.index == used[0].index) for card in known]
    config = {"strategy": "custom", "disabledGpus": [], "priority": [], "customRatio": ratio}
    shown = "custom, " + ":".join(f"{share:g}" for share in ratio)
    yield LmStudioSetting("GPU split", "load.gpuSplitConfig", config, shown)


def _model(startup: Startup) -> str:
    if not has_own_file(startup):
        return model_source(startup).words[1].partition(":")[0]
    files = startup.files
    name = files.label if files is not None else startup.variant.reference
    found = parsed(name, is_name=files is not None and files.origin.is_remote)
    return found.repo if isinstance(found, HubModel) else name


def _notes(startup: Startup) -> Iterator[str]:
    if note := model_source(startup).note:
        yield note
    if startup.verdict.streams > 1:
        yield "LM Studio uses one cache for all requests, as large as the planned caches together"
    if "cache_ram" in growth_limits(startup.verdict):
        yield "LM Studio has no setting for llama-server's prompt cache: it can grow to 8 GiB of RAM"
