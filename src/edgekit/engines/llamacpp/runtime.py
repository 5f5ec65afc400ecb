"""What is taken outside the engine's buffers: the driver's context, what the first decode loads, a server's caches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.tensor_placement import TensorPlacement
from edgekit.engines.llamacpp.types import Backend, Context, LlamaCppSetup, LlamaMode
from edgekit.machine.types import HOST, Pool, PoolKind
from edgekit.model.types import Cell, Model, Recurrent
from edgekit.units import MIB, format_bytes

# Measured on an H200 with CUDA 13: 526.8 MiB before anything is loaded; smaller cards take 0.3 to 0.6 GB.
CUDA_CONTEXT_BYTES = 527 * MIB
# After 600 tokens: the most that was measured of an architecture, without and with experts.
FIRST_DECODE_MIB = {
    ("llama", False): 97,  # Llama 2 and 3.1: 78 to 89; Mistral Small 24B: 94 to 97
    ("qwen3", False): 81,
    ("gemma2", False): 88,
    ("gemma3", False): 92,  # the 4B 84
    ("llama", True): 180,  # Mixtral
    ("qwen3moe", True): 180,
    ("gpt-oss", True): 177,
    ("deepseek2", True): 184,
    ("granitehybrid", True): 187,
}
FIRST_DECODE_DENSE_MIB = 98
FIRST_DECODE_DELTA_MIB = 93  # gated delta nets without experts: Qwen3.5 27B; the 9B 84
FIRST_DECODE_OTHER_MIB = 187  # experts or recurrences: 178 to 219 were seen
# Llama 3.1 8B took 190 MiB without flash attention, after it had run with it: matrices of scores go to cuBLAS, as those
# of experts do.
FIRST_DECODE_SCORES_MIB = 190
# Metal and Vulkan were not measured: pipelines and command buffers, as reported by users.
OTHER_CONTEXT_BYTES = 256 * MIB
EXCHANGE_BYTES = 192 * MIB  # of NCCL on each card, as users report for two
# A vocabulary twice as large, another build of the libraries: what was measured with one model, held for another.
OVERHEAD_WITHIN = 0.5
# What llama-server saves is limited by the bytes of cells and states; their positions and tokens come on top.
SAVED_WITHIN = 0.05


def runtime_lines(
    model: Model, context: Context, placement: TensorPlacement, setup: LlamaCppSetup
) -> Iterator[MemoryLine]:
    devices = set(placement.used)
    if setup.has_device and not devices:
        devices = {Pool(PoolKind.DEVICE)}  # the driver is woken even for no layers
    for pool in sorted(devices, key=lambda one: one.index):
        yield from _device_lines(model, context, pool, setup)
        if placement.ranks > 1:
            yield _line(pool, *_exchange(model, context, placement.ranks))
    if setup.overhead is not None:
        yield _line(HOST, setup.overhead.size_bytes, setup.overhead.because, OVERHEAD_WITHIN)


def overhead_notes(setup: LlamaCppSetup) -> Iterator[str]:
    if setup.overhead is not None:
        size = format_bytes(setup.overhead.size_bytes)
        yield (
            f"includes {size} of RAM that llama.cpp needs in addition to its buffers: "
            f"{setup.overhead.because}"
        )


def _device_lines(
    model: Model, context: Context, pool: Pool, setup: LlamaCppSetup
) -> Iterator[MemoryLine]:
    if setup.backend is Backend.CUDA:
        yield _line(pool, CUDA_CONTEXT_BYTES, "CUDA context, as measured on an H200", 0.5)
        yield replace(_line(pool, *_first_decode(model, context)), first_request=True)
    else:
        told = f"{setup.backend.value} context: pipelines and command buffers, not measured"
        yield _line(pool, OTHER_CONTEXT_BYTES, told, 1.0)


def _exchange(model: Model, context: Context, devices: int) -> tuple[int, str, float]:
    """-sm tensor: the devices add up what each has made (ggml-backend-meta.cpp: max_tmp_size)."""
    used = max((one.experts.used for one in model.geometry.layers if one.experts), default=1)
    steps = (devices - 1).bit_length()
    sums = steps * used * context.n_tokens * model.geometry.hidden * 4
    return EXCHANGE_BYTES + sums, "buffers to add up partial sums (NCCL), not measured", 1.0


def _first_decode(model: Model, context: Context) -> tuple[int, str, float]:
    geometry = model.geometry
    experts = any(layer.experts for layer in geometry.layers)
    states = any(layer.mixer.states for layer in geometry.layers)
    cells = {one.mixer.cell for one in geometry.layers if isinstance(one.mixer, Recurrent)}
    other = FIRST_DECODE_OTHER_MIB if experts or states else FIRST_DECODE_DENSE_MIB
    if cells == {Cell.GATED_DELTA} and not experts:
        other = FIRST_DECODE_DELTA_MIB
    size_mib = FIRST_DECODE_MIB.get((geometry.architecture, experts), other)
    within = 0.6 if states else 0.5  # some recurrences take no more than dense models
    because = "kernels and scratch memory loaded by the first decode"
    if context.flash_attn:
        return size_mib * MIB, because, within
    size_mib = max(size_mib, FIRST_DECODE_SCORES_MIB)
    return size_mib * MIB, f"{because}, without flash attention", within


def _line(pool: Pool, size_bytes: int, because: str, within: float) -> MemoryLine:
    return MemoryLine(
        component=Component.RUNTIME,
        size_bytes=size_bytes,
        pool=pool,
        basis=Basis.MODELLED,
        because=because,
        within=within,
    )


def server_lines(
    context: Context, setup: LlamaCppSetup, caches: Iterable[MemoryLine]
) -> Iterator[MemoryLine]:
    """What llama-server may come to hold on the host as prompts arrive; nothing of it is taken at the start."""
    if setup.mode is not LlamaMode.SERVER or setup.embeddings:
        return
    held = tuple(caches)
    if setup.cache_ram_mib:
        size = setup.cache_ram_mib * MIB
        prompt = sum(line.size_bytes for line in held) // context.streams
        yield _grows(
            Component.PROMPT_CACHE,
            size,
            f"prompts of finished requests, up to --cache-ram {setup.cache_ram_mib} MiB; "
            "builds before July 2026 store one prompt of any size",
            max(SAVED_WITHIN, prompt / size - 1),
        )
    saved = _saved_bytes(held) // context.n_seq_max
    if saved and setup.ctx_checkpoints:
        count = setup.ctx_checkpoints * context.n_seq_max
        yield _grows(
            Component.CHECKPOINTS,
            count * saved,
            f"up to {setup.ctx_checkpoints} checkpoints x {context.n_seq_max} slots x "
            f"{saved} bytes of sliding windows and states",
            SAVED_WITHIN,
        )


def _saved_bytes(caches: Iterable[MemoryLine]) -> int:
    """A checkpoint holds what cannot be rolled back: sliding windows and recurrent states."""
    partial = (Component.SLIDING_KV_CACHE, Component.STATE)
    return sum(line.size_bytes for line in caches if line.component in partial)


def _grows(component: Component, size_bytes: int, because: str, within: float) -> MemoryLine:
    return MemoryLine(
        component=component,
        size_bytes=size_bytes,
        pool=HOST,
        basis=Basis.MODELLED,
        because=because,
        within=within,
        reserved=False,
    )
