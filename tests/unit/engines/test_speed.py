"""Expected speeds: what a token reads, to the byte; ranges that hold what was measured; laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import config_header, engine_models, rows
from tests.thoroughness import LONG
from tests.unit.plan.machines import cards, cpu

from edgekit import __version__
from edgekit.basis import Basis
from edgekit.bill.types import Load, Placement, Task
from edgekit.bill.verdict import Speed
from edgekit.engines import engine_named
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.speed import READING, reads_per_token, sequence_run
from edgekit.engines.llamacpp.types import ALL_LAYERS, Backend, DeviceSlot, LlamaCppSetup
from edgekit.engines.mlx.quantization import Packing, Quantize
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.speed import (
    CPU_READING,
    METAL_READING,
    MeasuredRatio,
    Reading,
    calibrate,
    host_speed,
    modelled_speed,
    reading,
)
from edgekit.engines.token_reads import token_reads
from edgekit.engines.vllm.estimate import estimate as vllm_estimate
from edgekit.engines.vllm.speed import EAGER_READING
from edgekit.engines.vllm.speed import READING as VLLM_READING
from edgekit.engines.vllm.types import VllmSetup
from edgekit.formats.records import load_records
from edgekit.machine.calibration import device_key
from edgekit.machine.types import DEVICE, HOST, EngineMeasured, Machine, Measured, Pace
from edgekit.machine.what_if import what_if_machine
from edgekit.model import read_geometry
from edgekit.model.types import Model

GB = 10**9


def recorded(name: str, quant: str = "Q4_K_M") -> Model:
    return engine_models()[name, quant]


def of_config(name: str) -> Model:
    row = next(row for row in rows("vllm.jsonl.gz") if row["model"] == name)
    header = config_header(row["config"])
    return Model(header=header, geometry=read_geometry(header))


def llama_cpp(
    model: Model,
    machine: Machine,
    setup: LlamaCppSetup,
    *,
    filled: int | tuple[int, int] = 0,
    calibration: MeasuredRatio | None = None,
) -> Speed:
    ends = (filled, filled) if isinstance(filled, int) else filled
    load = Load(context_tokens=max(1024, ends[1]))
    bill = estimate(model, load, setup)
    run = sequence_run(model, load, setup, bill, machine)
    speed = modelled_speed(run, ends, calibration)
    assert speed is not None
    return speed


def on_engine(task: Task, setup: Any, filled: tuple[int, int] | None = None) -> Speed | None:
    engine = engine_named(task.engine)
    bill = engine.estimate(task.model, task.load, setup)
    placement = Placement(setup=setup, budgets=(), because="", cards=task.machine.devices)
    return engine.speed(task, placement, bill, filled)


CPU, CUDA, METAL = (
    LlamaCppSetup(backend=one) for one in (Backend.CPU, Backend.CUDA, Backend.METAL)
)
VULKAN = LlamaCppSetup(backend=Backend.VULKAN)


def with_host(machine: Machine, bandwidth_gb_s: int, cores: int) -> Machine:
    assert machine.host is not None
    host = replace(machine.host, bandwidth_bytes_per_s=bandwidth_gb_s * GB)
    return replace(machine, host=host, cores=cores)


# -- measured --------------------------------------------------------------------------------

DAI = "XiongjieDai/GPU-Benchmarks-on-LLM-Inference, llama.cpp of May 2024, 512 new tokens"
GIST = "gist andrewginns/cf95867c, after llama.cpp discussion 4167"
M2U = "llama.cpp benches/mac-m2-ultra"
SPARK = "llama.cpp benches/dgx-spark"
HERE = "measured for this table: llama.cpp b21e4de, made-up weights"


DAI_TABLE = "XiongjieDai/GPU-Benchmarks-on-LLM-Inference, overview: 1024 new tokens"


class Point(NamedTuple):
    device: str
    model: str
    quant: str
    setup: LlamaCppSetup
    filled: int
    decode: float
    prefill: float | None
    source: str
    ram: str | None = None


def part(**changes: Any) -> LlamaCppSetup:
    return replace(CUDA, **changes)


POINTS = (
    Point("H200", "llama-2-7b", "Q4_K_M", part(mix="Q4_0"), 64, 355.7, 10362, HERE),
    Point("H200", "llama-3.1-8b", "Q4_K_M", CUDA, 64, 258.9, 8618, HERE),
    Point("H200", "llama-3.1-8b", "Q4_K_M", CUDA, 16384, 210.4, 6559, HERE),
    Point("H200", "llama-3.1-8b", "Q8_0", CUDA, 64, 252.1, 9945, HERE),
    Point("H200", "llama-3.1-8b", "F16", CUDA, 64, 207.6, 17289, HERE),
    Point("H200", "qwen3-0.6b", "Q8_0", CUDA, 64, 727.0, 34446, HERE),
    Point("H200", "llama-3.2-1b", "Q4_K_M", CUDA, 64, 862.9, 30605, HERE),
    Point("H200", "mamba-2.8b", "Q8_0", CUDA, 64, 251.8, 8711, HERE),
    Point("H200", "gpt-oss-20b", "MXFP4_MOE", CUDA, 64, 338.0, 12060, HERE),
    Point("H200", "qwen3-30b-a3b", "Q4_K_M", CUDA, 64, 297.8, 9974, HERE),
    Point("H200", "qwen3-30b-a3b", "Q4_K_M", CUDA, 16384, 237.2, 6420, HERE),
    Point("H200", "llama-3.1-70b", "Q4_K_M", CUDA, 32, 41.6, 1163, HERE),
    # sixteen cores beside the H200 whose memory was read at 95 GB/s
    Point("H200", "llama-3.1-8b", "Q4_K_M", part(n_gpu_layers=16), 16, 15.1, 1138, HERE, "128G"),
    Point("H200", "llama-3.1-8b", "Q4_K_M", part(n_gpu_layers=0), 16, 12.7, 701, HERE, "128G"),
    Point("H200", "llama-3.1-8b", "Q4_K_M", CPU, 16, 10.0, 131, HERE, "128G"),
    # made-up routers choose few experts: the prompt would be slower with real ones
    Point("H200", "qwen3-30b-a3b", "Q4_K_M", part(cpu_moe=True), 16, 40.8, None, HERE, "128G"),
    Point("RTX 3070", "llama-3.1-8b", "Q4_K_M", CUDA, 256, 72.79, 2402, DAI),
    Point("RTX 3080 10GB", "llama-3.1-8b", "Q4_K_M", CUDA, 256, 109.57, 3729, DAI),
    Point("RTX 3080 Ti", "llama-3.1-8b", "Q4_K_M", CUDA, 256, 110.60, 3690, DAI),
    Point("RTX 4070 Ti", "llama-3.1-8b", "Q4_K_M", CUDA, 256, 83.50, 3936, DAI),
    Point("RTX 4080", "llama-3.1-8b", "Q4_K_M", CUDA, 256, 108.15, 5390, DAI),
    Point("RTX 4080", "llama-3.1-8b", "F16", CUDA, 256, 40.58, 7247, DAI),
    Point("RTX 3090", "llama-3.1-8b", "Q4_K_M", CUDA, 256, 115.42, 4030, DAI),
    Point("RTX 3090", "llama-3.1-8b", "F16", CUDA, 256, 47.40, 4445, DAI),
    Point("RTX 3090", "llama-3.1-8b", "Q4_K_M", CUDA, 4096, 87.49, None, DAI),  # of 8192, on average
    Point("RTX 4090", "llama-3.1-8b", "Q4_K_M", CUDA, 256, 130.58, 7139, DAI),
    Point("RTX 4090", "llama-3.1-8b", "F16", CUDA, 256, 54.84, 9382, DAI),
    Point("RTX 4090", "llama-3.1-8b", "Q4_K_M", CUDA, 4096, 110.66, None, DAI),
    Point("2x RTX 3090", "llama-3.1-70b", "Q4_K_M", part(devices=(DeviceSlot(),) * 2), 256, 16.57, 357, DAI),
    Point("2x RTX 4090", "llama-3.1-70b", "Q4_K_M", part(devices=(DeviceSlot(),) * 2), 256, 19.22, 839, DAI),
    Point("DGX Spark", "gpt-oss-20b", "MXFP4_MOE", CUDA, 512, 80.13, 1896, SPARK),
    Point("DGX Spark", "gpt-oss-20b", "MXFP4_MOE", CUDA, 8192, 74.36, 4406, SPARK),
    Point("M1 8GB", "llama-3.1-8b", "Q4_K_M", METAL, 256, 10.20, 94, DAI),
    Point("M1 Max 64GB", "llama-3.1-8b", "Q4_K_M", METAL, 256, 35.73, 408, DAI),
    Point("M1 Max 64GB", "llama-3.1-8b", "F16", METAL, 256, 18.75, 517, DAI),
    Point("M1 Max 64GB", "llama-3.1-70b", "Q4_K_M", METAL, 256, 4.34, 35, DAI),
    Point("M2 Ultra 192GB", "llama-3.1-8b", "Q4_K_M", METAL, 256, 78.81, 994, DAI),
    Point("M2 Ultra 192GB", "llama-3.1-8b", "Q4_K_M", METAL, 4096, 54.13, None, DAI),
    Point("M2 Ultra 192GB", "llama-3.1-8b", "F16", METAL, 256, 36.90, 1175, DAI),
    Point("M2 Ultra 192GB", "llama-3.1-70b", "Q4_K_M", METAL, 256, 12.48, 119, DAI),
    Point("M2 Ultra 192GB", "gpt-oss-20b", "MXFP4_MOE", METAL, 16, 129.9, 2713, M2U),
    Point("M2 Ultra 192GB", "gpt-oss-20b", "MXFP4_MOE", METAL, 32768, 98.2, 1123, M2U),
    Point("M3 Max 64GB", "llama-3.1-8b", "Q4_K_M", METAL, 256, 48.97, 693, DAI),
    Point("M3 Max 64GB", "llama-3.1-8b", "Q4_K_M", METAL, 4096, 36.12, None, DAI),
    Point("M3 Max 64GB", "llama-3.1-8b", "F16", METAL, 256, 22.04, 770, DAI),
    Point("M3 Max 64GB", "llama-3.1-70b", "Q4_K_M", METAL, 256, 7.65, 70, DAI),
    Point("M1 Pro 16GB", "llama-2-7b", "Q4_K_M", replace(METAL, mix="Q4_0"), 64, 35.52, 233, GIST),
    Point("M1 Pro 16GB", "llama-2-7b", "Q8_0", METAL, 64, 21.95, 235, GIST),
    Point("M1 Pro 16GB", "llama-2-7b", "F16", METAL, 64, 12.75, 263, GIST),
    Point("M3 Pro 36GB", "llama-2-7b", "Q4_K_M", replace(METAL, mix="Q4_0"), 64, 30.74, 342, GIST),
    Point("M3 Pro 36GB", "llama-2-7b", "Q8_0", METAL, 64, 17.53, 345, GIST),
    Point("M3 Pro 36GB", "llama-2-7b", "F16", METAL, 64, 9.89, 357, GIST),
    Point("M4 16GB", "llama-3.1-8b", "Q4_K_M", METAL, 64, 20.87, 225, "brand-o/normiebench#3"),
    Point("RX 7900 XTX", "llama-3.1-8b", "Q4_K_M", VULKAN, 32, 105.75, 3189, "llama.cpp PR 26284 (HIP)"),
    # Held against the ranges only after they were drawn.
    Point("RTX 4000 Ada", "llama-3.1-8b", "Q4_K_M", CUDA, 512, 58.59, None, DAI_TABLE),
    Point("RTX 4000 Ada", "llama-3.1-8b", "F16", CUDA, 512, 20.85, None, DAI_TABLE),
    Point("RTX 5000 Ada", "llama-3.1-8b", "Q4_K_M", CUDA, 512, 89.87, None, DAI_TABLE),
    Point("RTX 5000 Ada", "llama-3.1-8b", "F16", CUDA, 512, 32.67, None, DAI_TABLE),
    Point("RTX A6000", "llama-3.1-8b", "Q4_K_M", CUDA, 512, 102.22, None, DAI_TABLE),
    Point("RTX A6000", "llama-3.1-8b", "F16", CUDA, 512, 40.25, None, DAI_TABLE),
    Point("RTX 6000 Ada", "llama-3.1-8b", "Q4_K_M", CUDA, 512, 130.99, None, DAI_TABLE),
    Point("RTX 6000 Ada", "llama-3.1-8b", "F16", CUDA, 512, 51.97, None, DAI_TABLE),
    Point("A40", "llama-3.1-8b", "Q4_K_M", CUDA, 512, 88.95, None, DAI_TABLE),
    Point("A40", "llama-3.1-8b", "F16", CUDA, 512, 33.95, None, DAI_TABLE),
    Point("L40S", "llama-3.1-8b", "Q4_K_M", CUDA, 512, 113.60, None, DAI_TABLE),
    Point("L40S", "llama-3.1-8b", "F16", CUDA, 512, 43.42, None, DAI_TABLE),
    Point("A100 PCIe 80GB", "llama-3.1-8b", "F16", CUDA, 512, 54.56, None, DAI_TABLE),
    Point("RTX 3090", "gemma-3-4b", "Q4_K_M", CUDA, 512, 189.8, None, "calebcoffie.com/benchmarks"),
    Point("RTX 3050 8GB", "llama-3.1-8b", "Q4_K_M", part(mix="Q4_0"), 250, 38.8, None, "evilfreelancer/msnp-tests"),
    Point("Strix Halo 128GB", "qwen3.5-27b", "Q4_K_M", VULKAN, 64, 12.55, 339, "pastebin zgJeqRbv"),
    Point("Strix Halo 128GB", "qwen3.5-27b", "Q4_K_M", VULKAN, 16384, 11.75, 239, "pastebin zgJeqRbv"),
)  # fmt: skip


def _id(point: Point) -> str:
    return f"{point.device} {point.model} {point.quant} {point.filled} {point.decode}"


@pytest.mark.parametrize("point", POINTS, ids=_id)
def test_what_was_measured_lies_within_the_range(point: Point) -> None:
    machine = what_if_machine(devices=(point.device,), ram=point.ram)
    if point.ram:
        machine = with_host(machine, 95, cores=16)
    model = recorded(point.model, point.quant)
    speed = llama_cpp(model, machine, point.setup, filled=point.filled)
    slow, fast = speed.decode
    assert slow <= point.decode <= fast
    assert fast / slow < 7
    if point.prefill is not None:
        assert speed.prefill is not None
        assert speed.prefill[0] <= point.prefill <= speed.prefill[1]


# Two cores of a Xeon, its memory read by both at 18 GB/s; xllamacpp 2026.10, best of several: the machine was shared.
TWO_CORES = (
    ("llama-3.2-1b", "Q8_0", None, 9.8, 40),
    ("llama-3.2-1b", "Q4_K_M", None, 12.0, 29),
    ("llama-3.2-1b", "Q4_K_M", "Q4_0", 15.5, 56),
    ("qwen3-0.6b", "Q8_0", None, 15.4, 97),
)


def test_a_desktop_without_a_card() -> None:
    """A 13900K with DDR5-6400 reads 102 GB/s: ggml-org/llama.cpp#34, eight threads, and 55 for the prompt with all."""
    machine = with_host(cpu(64), 102, cores=24)
    speed = llama_cpp(recorded("llama-2-7b"), machine, replace(CPU, mix="Q4_0"), filled=64)
    assert speed.decode[0] <= 18.27 <= speed.decode[1]
    assert speed.prefill is not None
    assert speed.prefill[0] <= 55.21 <= speed.prefill[1]


@pytest.mark.parametrize(("name", "quant", "mix", "decode", "prefill"), TWO_CORES)
def test_two_cores(name: str, quant: str, mix: str | None, decode: float, prefill: float) -> None:
    machine = with_host(cpu(16), 18, cores=2)
    speed = llama_cpp(recorded(name, quant), machine, replace(CPU, mix=mix), filled=128)
    assert speed.decode[0] <= decode <= speed.decode[1]
    assert speed.prefill is not None
    assert speed.prefill[0] <= prefill <= speed.prefill[1]


# mlx-lm's own BENCHMARKS.md: a 64 GB M4 Max, 128 tokens after 2048.
@pytest.mark.parametrize(("bits", "decode", "prefill"), [(8, 83.16, 1719), (6, 94.14, 1667), (4, 113.33, 1754)])  # fmt: skip
def test_mlx(bits: int, decode: float, prefill: float) -> None:
    model, load = of_config("qwen3-30b-a3b"), Load(context_tokens=2176)
    setup = MlxSetup(quantize=Quantize(packing=Packing(bits=bits, group_size=64)))
    machine = what_if_machine(devices=("M4 Max 64GB",))
    task = Task(model=model, engine="mlx", machine=machine, load=load)
    speed = on_engine(task, setup, (2048, 2176))
    assert speed is not None
    assert speed.prefill is not None
    assert speed.decode[0] <= decode <= speed.decode[1]
    assert speed.prefill[0] <= prefill <= speed.prefill[1]


# -- what a token reads ----------------------------------------------------------------------


def work_of(model: Model, setup: LlamaCppSetup, context: int = 8192) -> Any:
    load = Load(context_tokens=context)
    return reads_per_token(model, load, setup, estimate(model, load, setup))


def tensor_bytes(model: Model, *without: str) -> int:
    return sum(one.size_bytes for one in model.header.tensors or () if one.name not in without)


def test_an_embedding_is_looked_up_and_a_head_is_read() -> None:
    model = recorded("llama-3.1-8b")
    (host,) = work_of(model, CPU).pools
    assert host.weights_bytes == pytest.approx(tensor_bytes(model, "token_embd.weight"), rel=1e-5)


def test_a_tied_embedding_is_read_as_the_head() -> None:
    model = recorded("qwen3-0.6b", "Q8_0")
    assert not any(one.name == "output.weight" for one in model.header.tensors or ())
    (host,) = work_of(model, CPU).pools
    assert host.weights_bytes == pytest.approx(tensor_bytes(model), rel=1e-5)


def test_of_the_experts_those_that_are_used_are_read() -> None:
    model = recorded("qwen3-30b-a3b")
    experts = sum(one.size_bytes for one in model.header.tensors or () if "_exps" in one.name)
    rest = tensor_bytes(model, "token_embd.weight") - experts
    (host,) = work_of(model, CPU).pools
    assert host.weights_bytes == pytest.approx(rest + experts * 8 / 128, rel=1e-5)


def test_experts_on_the_host_are_read_there() -> None:
    model = recorded("qwen3-30b-a3b")
    experts = sum(one.size_bytes for one in model.header.tensors or () if "_exps" in one.name)
    rest = tensor_bytes(model, "token_embd.weight") - experts
    work = work_of(model, replace(CUDA, cpu_moe=True))
    read = {one.pool: one.weights_bytes for one in work.pools}
    assert read[HOST] == pytest.approx(experts * 8 / 128, rel=1e-4)
    assert read[DEVICE] == pytest.approx(rest, rel=1e-3)
    assert work.crossings == 2 * 48


def test_a_cache_is_read_as_far_as_it_is_filled() -> None:
    work = work_of(recorded("llama-3.1-8b"), CUDA)
    device = next(one for one in work.pools if one.pool == DEVICE)
    token = 32 * 2 * 8 * 128 * 2  # layers, K and V, heads, width, f16
    assert device.cache_bytes(0) == 0
    assert device.cache_bytes(1000) == pytest.approx(1000 * token)
    assert device.cache_bytes(8192) == device.cache_bytes(10**9) == 8192 * token


def test_sequences_with_a_cache_of_their_own_read_only_that() -> None:
    model = recorded("llama-3.1-8b")
    load = Load(context_tokens=8192, sequences=4, unified=False)
    work = reads_per_token(model, load, CUDA, estimate(model, load, CUDA))
    device = next(one for one in work.pools if one.pool == DEVICE)
    assert work.context_tokens == 2048
    assert device.cache_bytes(2048) == 2048 * 32 * 2 * 8 * 128 * 2


def test_a_window_is_read_whole_once_it_is_full() -> None:
    work = work_of(recorded("gemma-3-27b"), CUDA, 32_768)
    device = next(one for one in work.pools if one.pool == DEVICE)
    assert {one.whole_tokens for one in device.caches} == {1024, 32_768}
    sliding = next(one for one in device.caches if one.whole_tokens == 1024)
    assert sliding.at(512) == sliding.whole_bytes / 2
    assert sliding.at(1024) == sliding.at(30_000) == sliding.whole_bytes


def test_a_state_is_read_and_written_whatever_was_said() -> None:
    work = work_of(recorded("mamba-2.8b"), CUDA)
    device = next(one for one in work.pools if one.pool == DEVICE)
    assert not device.caches
    # 64 layers of 5,120 channels: 3 inputs of the convolution and 16 numbers each, f32, read and written
    assert device.state_bytes == 2 * 64 * 5120 * (3 + 16) * 4


def test_packed_experts_are_light_beside_the_rest() -> None:
    model, load, setup = of_config("gpt-oss-20b"), Load(context_tokens=4096), VllmSetup()
    (card,) = token_reads(model, load, vllm_estimate(model, load, setup)).pools
    experts = 24 * 3 * 2880 * 2880 * 4  # of 32 in each layer 4
    rest = 24 * 2 * 2880 * (64 + 8) * 64 + 201_088 * 2880  # Q, K, V and out; the head
    assert card.weights_bytes == pytest.approx(experts * 17 / 32 + rest * 2, rel=0.05)


# -- laws ------------------------------------------------------------------------------------

NAMES = ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-27b", "deepseek-v2-lite", "granite-4-h-tiny", "llama-3.2-1b")  # fmt: skip
FILLS = st.integers(0, 8192)
# A bill of a new placement takes its time.
law = settings(deadline=None, max_examples=40 if LONG else 10)
models_of = st.sampled_from(NAMES)


def card(bandwidth_gb_s: int) -> Machine:
    machine = with_host(cards(80), 60, cores=8)
    (device,) = machine.devices
    return replace(machine, devices=(replace(device, bandwidth_bytes_per_s=bandwidth_gb_s * GB),))


def no_slower(one: Speed, other: Speed) -> bool:
    assert one.prefill is not None
    assert other.prefill is not None
    pairs = zip((*one.decode, *one.prefill), (*other.decode, *other.prefill), strict=True)
    return all(mine >= theirs * (1 - 1e-9) for mine, theirs in pairs)


@law
@given(name=models_of, less=st.integers(20, 8000), more=st.integers(0, 8000), filled=FILLS)
def test_more_bandwidth_is_never_slower(name: str, less: int, more: int, filled: int) -> None:
    slow = llama_cpp(recorded(name), card(less), CUDA, filled=filled)
    assert no_slower(llama_cpp(recorded(name), card(less + more), CUDA, filled=filled), slow)


@law
@given(name=models_of, count=st.integers(0, 64), filled=FILLS)
def test_more_layers_on_the_faster_device_are_never_slower(
    name: str, count: int, filled: int
) -> None:
    machine = card(1000)
    fewer = llama_cpp(recorded(name), machine, part(n_gpu_layers=count), filled=filled)
    further = llama_cpp(recorded(name), machine, part(n_gpu_layers=count + 1), filled=filled)
    assert all(
        mine >= theirs * (1 - 1e-9)
        for mine, theirs in zip(further.decode, fewer.decode, strict=True)
    )


@law
@given(name=models_of, filled=FILLS, more=FILLS, setup=st.sampled_from((CPU, CUDA, part(n_gpu_layers=9))))  # fmt: skip
def test_a_fuller_context_is_never_faster(
    name: str, filled: int, more: int, setup: LlamaCppSetup
) -> None:
    load = Load(context_tokens=16_384)
    bill = estimate(recorded(name), load, setup)
    run = sequence_run(recorded(name), load, setup, bill, card(900))
    less = modelled_speed(run, (filled, filled))
    fuller = modelled_speed(run, (filled + more, filled + more))
    assert less is not None
    assert fuller is not None
    assert no_slower(less, fuller)


@law
@given(used=st.integers(1, 127), setup=st.sampled_from((CPU, CUDA, part(cpu_moe=True))))
def test_more_experts_at_work_are_never_faster(used: int, setup: LlamaCppSetup) -> None:
    model = recorded("qwen3-30b-a3b")
    few, many = (_using(model, count) for count in (used, used + 1))
    assert no_slower(llama_cpp(few, card(900), setup), llama_cpp(many, card(900), setup))


def _using(model: Model, used: int) -> Model:
    layers = tuple(
        replace(layer, experts=replace(layer.experts, used=used)) if layer.experts else layer
        for layer in model.geometry.layers
    )
    return Model(header=model.header, geometry=replace(model.geometry, layers=layers))


READINGS = (*READING.values(), CPU_READING, METAL_READING, VLLM_READING, EAGER_READING)


@pytest.mark.parametrize("reading", READINGS)
@law
@given(less=st.floats(1, 1e13), more=st.floats(0, 1e13))
def test_rates_rise_with_the_bandwidth(reading: Reading, less: float, more: float) -> None:
    slow, fast = reading.rates(less)
    assert 0 < slow <= fast <= less
    assert all(
        after >= before
        for after, before in zip(reading.rates(less + more), (slow, fast), strict=True)
    )


# -- how it is known -------------------------------------------------------------------------


def test_a_host_of_unknown_memory_is_assumed_and_says_so() -> None:
    speed = llama_cpp(recorded("llama-3.1-8b"), cpu(64), CPU)
    assert speed.basis is Basis.ASSUMED
    assert "19 to 105 GB/s (assumed, typical of desktops)" in speed.because
    known = llama_cpp(recorded("llama-3.1-8b"), with_host(cpu(64), 60, cores=8), CPU)
    assert known.basis is Basis.MODELLED
    assert speed.decode[0] < known.decode[0] < known.decode[1] < speed.decode[1]


def test_many_cores_are_those_of_a_server() -> None:
    machine = replace(cpu(512), cores=64)
    assert host_speed(machine).bandwidth == (75 * GB, 600 * GB)
    assert "servers" in host_speed(machine).text


def test_few_cores_take_less_than_the_memory_gives() -> None:
    two, eight = (with_host(cpu(64), 200, cores=count) for count in (2, 8))
    assert host_speed(two).rates()[1] == 2 * 16 * GB
    assert host_speed(eight).rates()[1] == 8 * 16 * GB
    assert host_speed(with_host(cpu(64), 200, cores=64)).rates()[1] == pytest.approx(170 * GB)


def test_of_a_card_whose_bandwidth_nobody_knows_nothing_is_said() -> None:
    model, load = recorded("llama-3.1-8b"), Load(context_tokens=4096)
    bill = estimate(model, load, CUDA)
    assert modelled_speed(sequence_run(model, load, CUDA, bill, cards(24))) is None
    on_host = part(n_gpu_layers=0)  # the card holds nothing: what it reads does not matter
    bill = estimate(model, load, on_host)
    machine = with_host(cards(24), 60, cores=8)
    assert modelled_speed(sequence_run(model, load, on_host, bill, machine)) is not None


def test_prompts_on_a_card_of_unknown_kind_are_not_told() -> None:
    (device,) = card(900).devices
    machine = replace(card(900), devices=(replace(device, capability=None),))
    speed = llama_cpp(recorded("llama-3.1-8b"), machine, CUDA)
    assert speed.prefill is None


def test_where_it_is_read_from_is_told() -> None:
    speed = llama_cpp(recorded("llama-3.1-8b"), card(900), CUDA, filled=(0, 8192))
    assert speed.because == (
        "a token reads 4.30 GiB of weights and up to 1.00 GiB of cache (8,192 tokens) from 80 GiB card at 900 GB/s"
    )


def test_all_layers_are_as_many_as_there_are() -> None:
    model = recorded("llama-3.1-8b")
    full = llama_cpp(model, card(900), part(n_gpu_layers=ALL_LAYERS))
    assert full.decode == llama_cpp(model, card(900), part(n_gpu_layers=33)).decode


# -- several cards ---------------------------------------------------------------------------


def vllm(machine: Machine, **flags: Any) -> Speed:
    model, load = of_config("llama-3.1-8b"), Load(context_tokens=8192)
    task = Task(model=model, engine="vllm", machine=machine, load=load)
    speed = on_engine(task, VllmSetup(**flags))
    assert speed is not None
    return speed


def test_ranks_of_vllm_read_at_once_and_stages_one_after_another() -> None:
    machine = what_if_machine(devices=("2x H100 80GB",))
    alone, ranks, stages = (
        vllm(machine),
        vllm(machine, tensor_parallel_size=2),
        vllm(machine, pipeline_parallel_size=2),
    )
    assert alone.decode[0] < ranks.decode[0] < 2 * alone.decode[0]
    assert alone.decode[1] < ranks.decode[1] < 2 * alone.decode[1]
    assert stages.decode == pytest.approx(alone.decode, rel=0.1)
    assert stages.decode[0] <= alone.decode[0]
    assert "on each of 2 cards at once; for a single request" in ranks.because


def test_without_graphs_vllm_is_slower() -> None:
    machine = what_if_machine(devices=("H100 80GB",))
    assert vllm(machine, enforce_eager=True).decode[1] < vllm(machine).decode[1]


def test_layers_on_two_cards_are_read_one_after_the_other() -> None:
    model = recorded("llama-3.1-70b")
    one = llama_cpp(model, what_if_machine(devices=("RTX 4090",)), CUDA)
    two = llama_cpp(
        model, what_if_machine(devices=("2x RTX 4090",)), part(devices=(DeviceSlot(),) * 2)
    )
    assert two.decode == pytest.approx(one.decode, rel=0.01)


# -- calibration -----------------------------------------------------------------------------


def test_a_measurement_moves_and_narrows_the_range() -> None:
    machine = what_if_machine(devices=("H200",))
    plain = llama_cpp(recorded("llama-3.1-8b"), machine, CUDA, filled=64)
    assert plain.prefill is not None
    found = calibrate(plain, 258.9, 8618)
    again = llama_cpp(recorded("llama-3.1-8b"), machine, CUDA, filled=64, calibration=found)
    assert again.decode == pytest.approx((258.9 * 0.85, 258.9 * 1.15))
    assert again.prefill == pytest.approx((8618 * 0.85, 8618 * 1.15))
    # ... and helps with another model, another mix and a fuller cache
    others = (("llama-3.1-8b", "Q4_K_M", 16384, 210.4), ("llama-3.2-1b", "Q4_K_M", 64, 862.9), ("mamba-2.8b", "Q8_0", 64, 251.8))  # fmt: skip
    for name, quant, filled, measured in others:
        before = llama_cpp(recorded(name, quant), machine, CUDA, filled=filled)
        after = llama_cpp(recorded(name, quant), machine, CUDA, filled=filled, calibration=found)
        assert after.decode[1] / after.decode[0] < before.decode[1] / before.decode[0]
        assert after.decode[0] * 0.8 < measured < after.decode[1] * 1.25


def test_a_calibration_keeps_what_the_fill_makes_of_it() -> None:
    machine = card(900)
    settled = MeasuredRatio(decode=1.0, spread=0.0)
    model = recorded("llama-3.1-8b")
    both = llama_cpp(model, machine, CUDA, filled=(0, 8192), calibration=settled)
    full, empty = (
        llama_cpp(model, machine, CUDA, filled=(at, at), calibration=settled) for at in (8192, 0)
    )
    assert both.decode == pytest.approx((full.decode[0], empty.decode[1]))
    assert full.decode[0] < empty.decode[0]


def test_only_llamacpp_is_scaled_to_what_was_measured() -> None:
    machine = replace(what_if_machine(devices=("H100 80GB",)), what_if=False)
    pace = Pace(
        label="another model",
        bytes_per_token=2**30,
        prompt_tokens=512,
        decode_tokens_per_s=20.0,
        prefill_tokens_per_s=100.0,
        expected_decode=10.0,
        expected_prefill=200.0,
        bandwidth_bytes_per_s=None,
        edgekit=__version__,
        date="2026-11-16",
    )
    row = EngineMeasured(
        engine="llama.cpp",
        through="xllamacpp",
        version="1",
        host="",
        device=device_key(machine, machine.devices),
        date="2026-11-16",
        pace=pace,
    )
    calibrated = replace(machine, measured=Measured(engines=(row,)))
    assert vllm(calibrated) == vllm(machine)
    model, load = recorded("llama-3.1-8b"), Load(context_tokens=8192)
    task = Task(model=model, engine="llama.cpp", machine=calibrated, load=load)
    speed = on_engine(task, CUDA)
    assert speed is not None
    assert "scaled to another model" in speed.because


def test_generations_of_a_vendor_are_in_rising_order_and_every_record_is_read() -> None:
    records = load_records("edgekit.engines", "throughput.json")
    for vendor in ("nvidia", "apple", "amd", "intel"):
        since = [record["since"] for record in records if record.get("vendor") == vendor]
        assert since == sorted(since)
    assert {record["reading"] for record in records if "reading" in record} == set(NAMED_READINGS)
    for name, one in NAMED_READINGS.items():
        assert reading(name) is one


NAMED_READINGS = {
    "cpu": CPU_READING,
    "metal": METAL_READING,
    "llama.cpp on CUDA": READING[Backend.CUDA],
    "llama.cpp on Vulkan": READING[Backend.VULKAN],
    "vLLM": VLLM_READING,
    "vLLM without CUDA graphs": EAGER_READING,
}
