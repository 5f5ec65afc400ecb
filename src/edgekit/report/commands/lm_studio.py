"""A plan -> LM Studio's settings: as its screen names them, as the JSON it keeps, and what `lms load` takes of them.

Keys: lmstudio-js packages/lms-kv-config/src/schema.ts @ 6ec11db; flags: lms src/subcommands/load.ts @ 07b7252.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from edgekit.engines import engine_named
from edgekit.engines.llamacpp.growth import growth_limits
from edgekit.engines.llamacpp.placement import has_experts_on_host
from edgekit.engines.llamacpp.types import ALL_LAYERS, Backend
from edgekit.engines.model_words import parsed
from edgekit.report.commands import llamacpp, mlx
from edgekit.report.commands.types import FILE, SETTINGS, Command, Planned
from edgekit.sources.reference import HubModel

MLX_BITS = frozenset({8, 6, 4, 3, 2})
MLX_GROUPS = frozenset({32, 64, 128})

Setting = tuple[str, str, Any]  # as the screen names it, its key, its value


def ready(planned: Planned) -> Iterator[Command]:
    settings = list(_SETTINGS[planned.plan.wish.engine](planned))
    notes = tuple(_notes(planned))
    listed = "".join(
        f"{name}: {_shown(name, value, planned)}\n" for name, _, value in settings if name
    )
    yield Command(name="LM Studio settings", kind=SETTINGS, text=listed, notes=notes)
    fields = [{"key": key, "value": value} for _, key, value in settings]
    preset = {"operation": {"fields": []}, "load": {"fields": fields}}
    text = json.dumps(preset, indent=2) + "\n"
    yield Command(name="LM Studio preset", kind=FILE, text=text)
    yield planned.command("lms load", _load_words(planned, settings), notes=_load_notes(settings))


def _llamacpp(planned: Planned) -> Iterator[Setting]:
    plan, setup, facts = planned.plan, planned.setup, planned.facts
    yield "Context Length", "llm.load.contextLength", facts["n_ctx"]
    yield "", "llm.load.llama.autoFit", False  # else it would fit layers by itself
    yield "GPU Offload", "llm.load.llama.acceleration.offloadRatio", _offload(planned)
    if any(layer.experts for layer in plan.variant.model.geometry.layers):
        yield (
            "Layers with MoE weights on the CPU",
            "llm.load.numCpuExpertLayersRatio",
            _experts(planned),
        )
    yield "Offload KV Cache to GPU Memory", "llm.load.offloadKVCacheToGpu", setup.offload_kqv
    yield "Flash Attention", "llm.load.llama.flashAttention", bool(facts["flash_attn"])
    for name, kind in (("K", plan.load.cache_k), ("V", plan.load.cache_v)):
        kept = {"checked": kind is not None, "value": "f16" if kind is None else kind.name}
        yield (
            f"{name} Cache Quantization Type",
            f"llm.load.llama.{name.lower()}CacheQuantizationType",
            kept,
        )
    yield "Max Concurrent Predictions", "llm.load.numParallelSessions", facts["n_seq_max"]
    yield "Unified KV Cache", "llm.load.useUnifiedKvCache", facts["kv_streams"] == 1
    yield "Evaluation Batch Size", "llm.load.llama.evalBatchSize", facts["n_batch"]
    yield "Physical Batch Size", "llm.load.llama.physicalBatchSize", facts["n_ubatch"]
    yield "Try mmap()", "llm.load.llama.tryMmap", setup.use_mmap
    limits = growth_limits(plan.result)
    if "ctx_checkpoints" in limits:
        yield "Context Checkpoints", "llm.load.llama.contextCheckpoints", limits["ctx_checkpoints"]
    yield from _cards(planned)


def _offload(planned: Planned) -> str | float:
    """The share of the blocks; the output goes with the last of them."""
    setup = planned.setup
    if setup.backend is Backend.CPU or not setup.n_gpu_layers:
        return "off"
    if setup.n_gpu_layers >= ALL_LAYERS or setup.n_gpu_layers > planned.layers:
        return "max"
    return float(setup.n_gpu_layers / planned.layers)


def _experts(planned: Planned) -> str | float:
    setup = planned.setup
    if setup.backend is Backend.CPU:
        return "off"
    if setup.cpu_moe:
        return "max"
    blocks = sum(map(has_experts_on_host(setup), range(planned.layers)))  # it divides no layer
    if planned.plan.result.way.by_tensor and not setup.n_cpu_moe and len(setup.overrides) == 1:
        blocks += 1  # the last layers' experts are in RAM; the first ones', as here, leave less room on the GPU
    return float(blocks / planned.layers) if blocks else "off"


def _cards(planned: Planned) -> Iterator[Setting]:
    """Shares of all cards that it sees, in the order of their numbers: 0 leaves one alone."""
    plan, used = planned.plan, planned.plan.result.way.cards
    known = engine_named(plan.wish.engine).devices(plan.wish.machine)
    if not used or (len(used) == len(known) and not planned.setup.tensor_split):
        return
    shares = planned.setup.tensor_split or tuple(float(card.free_bytes) for card in used)
    by_card = dict(zip((card.index for card in used), shares, strict=False))
    ratio = [round(by_card.get(card.index, 0.0), 3) for card in known]
    if len(used) == 1:
        ratio = [float(card.index == used[0].index) for card in known]
    config = {"strategy": "custom", "disabledGpus": [], "priority": [], "customRatio": ratio}
    yield "GPU split", "load.gpuSplitConfig", config


def _mlx(planned: Planned) -> Iterator[Setting]:
    setup, load = planned.setup, planned.plan.load
    yield "Context Length", "llm.load.contextLength", planned.plan.context_tokens
    yield "", "llm.load.mlx.autoFit", False
    yield "Max Concurrent Predictions", "llm.load.numParallelSessions", load.sequences or 1
    if setup.kv_bits in MLX_BITS and setup.kv_group_size in MLX_GROUPS:
        kept = {
            "enabled": True,
            "bits": setup.kv_bits,
            "groupSize": setup.kv_group_size,
            "quantizedStart": setup.quantized_kv_start,
        }
        yield "KV Cache Quantization", "llm.load.mlx.kvCacheQuantization", kept


_SETTINGS = {"llama.cpp": _llamacpp, "mlx": _mlx}


def _shown(name: str, value: Any, planned: Planned) -> str:
    """As a person sets it: layers where the key has a share of them."""
    counted = name in {"GPU Offload", "Layers with MoE weights on the CPU"}
    if counted:
        count = {"max": planned.layers, "off": 0}.get(value) if isinstance(value, str) else None
        count = round(value * planned.layers) if count is None else count
        return f"{count} of {planned.layers} layers"
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, dict):
        return str(value)
    if "checked" in value:
        return str(value["value"]) if value["checked"] else "off (f16)"
    if "customRatio" in value:
        return "custom, " + ":".join(f"{share:g}" for share in value["customRatio"])
    return (
        f"{value['bits']} bit, groups of {value['groupSize']}, from token {value['quantizedStart']}"
    )


def _notes(planned: Planned) -> Iterator[str]:
    if planned.plan.wish.engine == "mlx":
        packed = mlx.to_convert(planned)
        if packed is not None and mlx.published(planned) is None:
            yield f"load the folder that mlx_lm.convert writes: {mlx.model_word(planned)}"
        return
    yield from llamacpp.source_notes(planned)
    if planned.plan.result.streams > 1:
        yield "LM Studio uses one cache for all requests, as large as the planned caches together"
    if "cache_ram" in growth_limits(planned.plan.result):
        yield "LM Studio has no setting for llama-server's prompt cache: it can grow to 8 GiB of RAM"


def _load_words(planned: Planned, settings: list[Setting]) -> list[str]:
    values = {key: value for _, key, value in settings}
    words = ["lms", "load", _model_key(planned)]
    words += ["--context-length", str(values["llm.load.contextLength"])]
    ratio = values.get("llm.load.llama.acceleration.offloadRatio")
    if ratio is not None:
        words += ["--gpu", ratio if isinstance(ratio, str) else f"{ratio:g}"]
    return [*words, "--parallel", str(values["llm.load.numParallelSessions"])]


def _model_key(planned: Planned) -> str:
    if planned.plan.wish.engine == "mlx":
        return mlx.model_word(planned)
    if not llamacpp.has_own_file(planned):
        return llamacpp.model_words(planned)[1].partition(":")[0]
    files = planned.files
    name = files.label if files is not None else planned.plan.variant.reference
    found = parsed(name, is_name=files is not None and files.origin.is_remote)
    return found.repo if isinstance(found, HubModel) else name


def _load_notes(settings: list[Setting]) -> list[str]:
    """The rest of them are no flags of lms."""
    words = {
        "llm.load.contextLength",
        "llm.load.numParallelSessions",
        "llm.load.llama.acceleration.offloadRatio",
    }
    plain: dict[str, Any] = {
        "llm.load.offloadKVCacheToGpu": True,
        "llm.load.numCpuExpertLayersRatio": "off",
        "llm.load.llama.tryMmap": True,
    }
    rest = [
        name
        for name, key, value in settings
        if name and key not in words and plain.get(key) != value and not _is_default(value)
    ]
    key = "`lms ls` shows the key of the model in LM Studio"
    return (
        [key, f"set these first, as defaults of the model in LM Studio: {', '.join(rest)}"]
        if rest
        else [key]
    )


def _is_default(value: Any) -> bool:
    return isinstance(value, dict) and value.get("checked") is False
