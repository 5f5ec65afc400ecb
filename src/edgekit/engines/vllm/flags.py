"""vLLM's flags -> a load and a setup, and the command that starts it so."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines.flags import Flag, flag_words, share, size, whole
from edgekit.errors import UsageError
from edgekit.units import GIB

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.engines.vllm.types import Gpu, VllmSetup
    from edgekit.machine.devices import KnownDevice
    from edgekit.model.open import Opened

TITLE = "vLLM"


def _card(name: str) -> KnownDevice:
    from edgekit.machine.devices import find_device

    device = find_device(name)
    if device.capability is None:
        raise UsageError(
            f"{device.name}: EdgeKit supports vLLM on NVIDIA GPUs of the Volta generation or newer"
        )
    return device


FLAGS: tuple[Flag, ...] = (
    Flag(("-tp", "--tensor-parallel-size"), "tensor_parallel_size", "GPUs that each layer is split over (tensor parallel)", "N", whole(1, 4096)),
    Flag(("-pp", "--pipeline-parallel-size"), "pipeline_parallel_size", "groups of GPUs that the layers are divided among (pipeline parallel)", "N", whole(1, 4096)),
    Flag(("--kv-cache-dtype",), "kv_cache_dtype", "KV cache type: auto (default), fp8 ...", "TYPE"),
    Flag(("--gpu-memory-utilization",), "gpu_memory_utilization", "share of the GPU's memory that vLLM may use (default 0.92)", "SHARE", share),
    Flag(("--kv-cache-memory-bytes",), "kv_cache_memory_bytes", "size of the KV cache, instead of a share of the GPU: 20G", "SIZE", size),
    Flag(("--max-num-seqs",), "max_num_seqs", "maximum number of requests at the same time", "N", whole(1)),
    Flag(("--max-num-batched-tokens",), "max_num_batched_tokens", "maximum number of tokens computed in one step", "N", whole(1)),
    Flag(("--block-size",), "block_size", "tokens per block of the KV cache", "N", whole(1, 2**20)),
    Flag(("--enable-prefix-caching",), "enable_prefix_caching", "reuse the KV cache of repeated prompts (default)"),
    Flag(("--no-enable-prefix-caching",), "enable_prefix_caching", "do not reuse the KV cache of repeated prompts", value=False),
    Flag(("--disable-hybrid-kv-cache-manager",), "disable_hybrid_kv_cache_manager", "cache sliding-window layers like full attention"),
    Flag(("--dtype",), "dtype", "data type of the weights: auto (default), bfloat16, float16, float32", "TYPE"),
    Flag(("-q", "--quantization"), "quantization", "same as --quant, for vLLM: fp8, awq ... (default: as the files say)", "NAME"),
    Flag(("--enforce-eager",), "enforce_eager", "run without CUDA graphs"),
    Flag(("--no-async-scheduling",), "async_scheduling", "do not schedule the next step while one runs", value=False),
    Flag(("--mamba-ssm-cache-dtype",), "mamba_ssm_cache_dtype", "data type of recurrent states", "TYPE"),
    Flag(("--gpu",), "gpu", "GPU by name: H100, RTX 4090 ...", "NAME", _card, ours=True),
    Flag(("--gpu-memory",), "gpu_memory", "memory of one GPU: 80G", "SIZE", size, ours=True),
)  # fmt: skip


_UNLIKE_THE_SETUP = frozenset({"context", "gpu", "gpu_memory"})


def ask(values: Mapping[str, Any]) -> tuple[Load, VllmSetup]:
    """What is asked of vLLM: its flags are the fields of the setup."""
    from edgekit.bill.types import Load
    from edgekit.engines.vllm.types import VllmSetup

    plain = {key: value for key, value in values.items() if key not in _UNLIKE_THE_SETUP}
    return Load(context_tokens=values.get("context") or None), VllmSetup(gpu=_gpu(values), **plain)


def _gpu(values: Mapping[str, Any]) -> Gpu:
    from edgekit.engines.vllm.types import Gpu

    memory: int | None = values.get("gpu_memory")
    card: KnownDevice | None = values.get("gpu")
    if memory is not None and memory < GIB:
        raise UsageError(
            f"--gpu-memory: {memory} bytes is too small for a GPU; write for example 80G"
        )
    if card is None or card.capability is None:
        return Gpu(memory_bytes=memory)
    return Gpu(name=card.name, memory_bytes=memory or card.usable_bytes, capability=card.capability)


def settled(setup: VllmSetup) -> dict[str, Any]:
    """What a plan has chosen, as values of flags."""
    from edgekit.engines.vllm.types import DEFAULT_UTILIZATION

    found: dict[str, Any] = {}
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(setup, name) > 1:
            found[name] = getattr(setup, name)
    if setup.gpu_memory_utilization != DEFAULT_UTILIZATION:
        found["gpu_memory_utilization"] = setup.gpu_memory_utilization
    return found


def told(load: Load, estimate: MemoryEstimate) -> str:
    """What was asked for, as vLLM resolved it, and what the pool holds."""
    facts: dict[str, Any] = dict(estimate.facts)
    cache = facts["dtype"] if facts["kv_cache_dtype"] == "auto" else facts["kv_cache_dtype"]
    cards = f" on each of {facts['world_size']} cards" if facts["world_size"] > 1 else ""
    asked = f"requests of up to {facts['max_model_len']:,} tokens{cards}, cache {cache}, "
    if facts["refused"]:
        return f"{asked}not even one of which fits"
    if facts["max_concurrency"] is None:
        count = load.sequences or 1
        return f"{asked}GPU memory unknown (add --gpu): cache for {count} such request{'s' * (count > 1)}"
    return f"{asked}blocks of {facts['block_size']}: room for {facts['max_concurrency']:,.2f} such requests at once"


def command(values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened) -> list[str]:
    """The length is always said: vLLM would take the model's own, or what fits."""
    from edgekit.engines.model_words import repository_word

    length = dict(estimate.facts)["max_model_len"]
    words = ["vllm", "serve", repository_word(opened.files, opened.repository)]
    return [*words, "--max-model-len", str(length), *flag_words(FLAGS, values)]
