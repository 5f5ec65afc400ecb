"""vLLM's flags: the table of everything that can be set -> a load and a setup, and back."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines import flags as common
from edgekit.engines.flags import (
    CacheFlags,
    Control,
    Flag,
    Page,
    field_values,
    fields_of,
    given_values,
    number,
    read_options,
    share,
    size,
    text,
    whole,
    yes_no,
)
from edgekit.errors import UsageError
from edgekit.units import GIB

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.engines.vllm.types import Gpu, VllmSetup
    from edgekit.machine.devices import KnownDevice

TITLE = "vLLM"


def _card(name: str) -> KnownDevice:
    from edgekit.machine.devices import find_device

    device = find_device(name)
    if device.capability is None:
        raise UsageError(
            f"{device.name}: EdgeKit supports vLLM on NVIDIA GPUs of the Volta generation or newer"
        )
    return device


def _row_gpu(name: str, value: Any) -> Gpu:
    """A GPU as a row describes it."""
    from edgekit.engines.vllm.types import Gpu

    if not isinstance(value, Mapping):
        raise UsageError(
            f"{name} {value!r:.60} is not an object with name, memory_bytes, capability"
        )
    capability = value.get("capability", Gpu().capability)
    is_pair = isinstance(capability, list | tuple) and len(capability) == 2
    if not is_pair or not all(type(part) is int and 0 <= part < 1000 for part in capability):
        raise UsageError(f"capability {capability!r:.60} is not two whole numbers")
    label, memory = value.get("name"), value.get("memory_bytes")
    return Gpu(
        name="" if label is None else text("name", label),
        memory_bytes=None if memory is None else number("memory_bytes", memory),
        capability=(capability[0], capability[1]),
    )


def _row_share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise UsageError(f"{name} must be above 0 and at most 1 (got {value!r:.60})")
    return float(value)


_CACHE_NAMES = (
    "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit",
    "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6",
)  # fmt: skip
CONTEXT = common.CONTEXT._replace(option="max_model_len")
FLAGS: tuple[Flag, ...] = (
    Flag(("-tp", "--tensor-parallel-size"), "tensor_parallel_size", "GPUs that each layer is split over (tensor parallel)", "N", whole(1, 4096), group="cards",
         row=number, control=Control("Tensor parallel GPUs", ("1", "2", "4", "8"), "auto", is_wide=True)),
    Flag(("-pp", "--pipeline-parallel-size"), "pipeline_parallel_size", "groups of GPUs that the layers are divided among (pipeline parallel)", "N", whole(1, 4096), group="cards", row=number),
    Flag(("--kv-cache-dtype",), "kv_cache_dtype", "KV cache type: auto (default), fp8 ...", "TYPE", group="cache",
         row=text, control=Control("KV cache type", _CACHE_NAMES, "auto", is_wide=True, place=0)),
    Flag(("--gpu-memory-utilization",), "gpu_memory_utilization", "share of the GPU's memory that vLLM may use (default 0.92)", "SHARE", share,
         row=_row_share, control=Control("GPU memory utilization", default=0.92, kind="share")),
    Flag(("--kv-cache-memory-bytes",), "kv_cache_memory_bytes", "size of the KV cache, instead of a share of the GPU: 20G", "SIZE", size, row=number),
    Flag(("--max-num-seqs",), "max_num_seqs", "maximum number of requests at the same time", "N", whole(1),
         row=number, control=Control("Max parallel requests", fact="max_num_seqs"), not_planned="--max-num-seqs: use --users N for N requests at the same time"),
    Flag(("--max-num-batched-tokens",), "max_num_batched_tokens", "maximum number of tokens computed in one step", "N", whole(1),
         row=number, control=Control("Max batched tokens", fact="max_num_batched_tokens")),
    Flag(("--block-size",), "block_size", "tokens per block of the KV cache", "N", whole(1, 2**20), row=number),
    Flag(("--enable-prefix-caching",), "enable_prefix_caching", "reuse the KV cache of repeated prompts (default)", row=yes_no),
    Flag(("--no-enable-prefix-caching",), "enable_prefix_caching", "do not reuse the KV cache of repeated prompts", value=False),
    Flag(("--disable-hybrid-kv-cache-manager",), "disable_hybrid_kv_cache_manager", "cache sliding-window layers like full attention", row=yes_no),
    Flag(("--dtype",), "dtype", "data type of the weights: auto (default), bfloat16, float16, float32", "TYPE", row=text),
    Flag(("-q", "--quantization"), "quantization", "same as --quant, for vLLM: fp8, awq ... (default: as the files say)", "NAME", row=text),
    Flag(("--enforce-eager",), "enforce_eager", "run without CUDA graphs", row=yes_no),
    Flag(("--no-async-scheduling",), "async_scheduling", "do not schedule the next step while one runs", value=False, row=yes_no),
    Flag(("--mamba-ssm-cache-dtype",), "mamba_ssm_cache_dtype", "data type of recurrent states", "TYPE", row=text),
    Flag(("--gpu",), "gpu", "GPU by name: H100, RTX 4090 ...", "NAME", _card, ours=True, row=_row_gpu, of_machine=True),
    Flag(("--gpu-memory",), "gpu_memory", "memory of one GPU: 80G", "SIZE", size, ours=True, of_machine=True),
)  # fmt: skip
# Only rows of a batch have these: there is no flag.
ROW_ONLY = (
    Flag((), "sequences", "", "N", row=number),
    Flag((), "mamba_cache_dtype", "", "TYPE", row=text),
    Flag((), "flashinfer", "", row=yes_no),
)
TABLE = (CONTEXT, *FLAGS, *ROW_ONLY)
# It takes its share of the card and either starts or does not.
PAGE = Page(
    "vLLM",
    "vLLM",
    CacheFlags(("kv_cache_dtype",), "auto"),
    verdicts=(("passed", "Starts"), ("failed", "Does not start")),
)
UNUSED_OPTIONS = frozenset({"available_kv_bytes"})
QUANT_KEY = "quantization"


def default_setup() -> VllmSetup:
    from edgekit.engines.vllm.types import VllmSetup

    return VllmSetup()


def setup(values: Mapping[str, Any]) -> tuple[Load, VllmSetup]:
    """What the flags ask of vLLM: most are the fields of its setup. Raises UsageError."""
    from edgekit.bill.types import Load
    from edgekit.engines.vllm.types import VllmSetup

    load = field_values(TABLE, values, Load)
    load["context_tokens"] = values.get("context") or None
    return Load(**load), VllmSetup(
        **{**field_values(TABLE, values, VllmSetup), "gpu": _gpu(values)}
    )


def values(load: Load, setup: VllmSetup) -> dict[str, Any]:
    """And back: read again, they give this load and setup."""
    from contextlib import suppress
    from dataclasses import replace

    from edgekit.engines.vllm.types import Gpu
    from edgekit.machine.devices import find_device

    found = given_values(TABLE, load, replace(setup, gpu=Gpu()))
    if setup.gpu != Gpu(memory_bytes=setup.gpu.memory_bytes):
        with suppress(UsageError):  # of --vram only the size is known
            found["gpu"] = find_device(setup.gpu.name)
    if setup.gpu.memory_bytes is not None:
        found["gpu_memory"] = setup.gpu.memory_bytes
    return found


def read_row(options: Mapping[str, Any], _backend: str | None = None) -> tuple[Load, VllmSetup]:
    """A row of a batch, in the names of vLLM's own flags. Raises UsageError."""
    from dataclasses import replace

    given = read_options(TABLE, options)
    for key in (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "dtype",
        "kv_cache_dtype",
        "mamba_cache_dtype",
        "mamba_ssm_cache_dtype",
    ):  # 0 and "" are as if not given
        if not given.get(key, True):
            del given[key]
    pool = options.get("available_kv_bytes") if "kv_cache_memory_bytes" not in given else None
    if pool is not None:
        given["kv_cache_memory_bytes"] = number("available_kv_bytes", pool)
    load, wanted = setup(given)
    return replace(load, context_tokens=given.get("context")), wanted


def read_quant(name: str) -> str | None:
    """The quantisation of `--quant NAME` as vLLM calls it."""
    from edgekit.engines.vllm.schemes import METHODS

    lower = name.lower()
    return lower if lower in METHODS or lower.startswith("fp8") else None


def quant_names() -> tuple[str, ...]:
    from edgekit.engines.vllm.schemes import METHODS

    return tuple(sorted(METHODS))


def _gpu(values: Mapping[str, Any]) -> Gpu:
    from edgekit.engines.vllm.types import Gpu

    memory: int | None = values.get("gpu_memory")
    card: KnownDevice | Gpu | None = values.get("gpu")
    if isinstance(card, Gpu):
        return card
    if memory is not None and memory < GIB:
        raise UsageError(
            f"--gpu-memory: {memory} bytes is too small for a GPU; write for example 80G"
        )
    if card is None or card.capability is None:
        return Gpu(memory_bytes=memory)
    return Gpu(name=card.name, memory_bytes=memory or card.usable_bytes, capability=card.capability)


def placement(setup: VllmSetup) -> dict[str, Any]:
    """Where a plan has put the model, as values of flags."""
    return {
        flag.key: value
        for flag, value, default in fields_of(FLAGS, setup)
        if value != default and (flag.group == "cards" or flag.key == "gpu_memory_utilization")
    }


def describe(load: Load, estimate: MemoryEstimate) -> str:
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
