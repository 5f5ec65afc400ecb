"""Expected speeds: what a token reads, to the byte; ranges that hold what was measured; laws."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import config_header, engine_models, rows
from tests.thoroughness import LONG
from tests.unit.plan.machines import cards, cpu

from edgekit import __version__
from edgekit.bill.types import Load, Placement, Speed, Task
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
    host_speed,
    middle,
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
from edgekit.machine.types import (
    DEVICE,
    HOST,
    EngineMeasured,
    EngineSpeed,
    Machine,
    Measured,
    Vendor,
)
from edgekit.machine.what_if import what_if_machine
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.units import Basis

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


CPU, CUDA = LlamaCppSetup(backend=Backend.CPU), LlamaCppSetup(backend=Backend.CUDA)


def with_host(machine: Machine, bandwidth_gb_s: int, cores: int) -> Machine:
    assert machine.host is not None
    host = replace(machine.host, bandwidth_bytes_per_s=bandwidth_gb_s * GB)
    return replace(machine, host=host, cores=cores)


# -- measured --------------------------------------------------------------------------------

# docs/data/speeds.tsv: a device and how it was used, a model, the tokens in the cache, the speeds measured and expected.
SPEEDS = Path(__file__).parents[3] / "docs" / "data" / "speeds.tsv"
MEASURED = list(csv.DictReader(SPEEDS.read_text(encoding="utf-8").splitlines(), delimiter="\t"))
BACKENDS = {Vendor.NVIDIA: Backend.CUDA, Vendor.APPLE: Backend.METAL, Vendor.AMD: Backend.VULKAN}
# without a GPU: size in GiB and bandwidth in GB/s of the RAM, and cores
HOSTS = {"2 cores": (16, 18, 2), "13900K": (64, 102, 24)}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "-ngl 16": {"n_gpu_layers": 16},
    "-ngl 0": {"n_gpu_layers": 0},
    "CPU alone": {"backend": Backend.CPU},
    "experts on the host": {"cpu_moe": True},
}


def expected_speed(row: dict[str, str]) -> Speed | None:
    device, _, use = row["device"].partition(", ")
    name, quant = row["model"].split(" ", 1)
    filled = int(row["filled"].replace(",", ""))
    if use == "MLX":  # its benchmark writes 128 tokens
        model, load = of_config(name), Load(context_tokens=filled + 128)
        quantize = Quantize(packing=Packing(bits=int(quant.removesuffix(" bit")), group_size=64))
        machine = what_if_machine(devices=(device,))
        task = Task(model=model, engine="mlx", machine=machine, load=load)
        return on_engine(task, MlxSetup(quantize=quantize), (filled, filled + 128))
    mix = "Q4_0" if quant == "Q4_0" else None  # recorded headers have no Q4_0
    model = recorded(name, "Q4_K_M" if mix else quant)
    if device in HOSTS:
        ram_gib, bandwidth_gb_s, cores = HOSTS[device]
        machine, setup = with_host(cpu(ram_gib), bandwidth_gb_s, cores), CPU
    else:
        machine = what_if_machine(devices=(device,), ram="128G" if use else None)
        slots = (DeviceSlot(),) * len(machine.devices)
        setup = LlamaCppSetup(backend=BACKENDS[machine.devices[0].vendor], devices=slots)
        if use:  # on the machine of our own H200
            machine, setup = with_host(machine, 95, cores=16), replace(setup, **PLACEMENTS[use])
    return llama_cpp(model, machine, replace(setup, mix=mix), filled=filled)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: " ".join(list(row.values())[:4]))
def test_measured_speed_is_within_the_expected_range(row: dict[str, str]) -> None:
    speed = expected_speed(row)
    assert speed is not None
    assert speed.decode[1] / speed.decode[0] < 7
    for name, ends in (("decode", speed.decode), ("prompt", speed.prefill)):
        if row[name]:
            assert ends is not None
            shown = " to ".join(f"{end:.1f}" if end < 20 else f"{end:,.0f}" for end in ends)
            assert shown == row[f"{name} expected"]
            assert ends[0] <= float(row[name].replace(",", "")) <= ends[1]


# -- what a token reads ----------------------------------------------------------------------


def work_of(model: Model, setup: LlamaCppSetup, context: int = 8192) -> Any:
    load = Load(context_tokens=context)
    return reads_per_token(model, load, setup, estimate(model, load, setup))


def tensor_bytes(model: Model, *without: str) -> int:
    return sum(item.size_bytes for item in model.header.tensors or () if item.name not in without)


def test_an_embedding_is_looked_up_and_a_head_is_read() -> None:
    model = recorded("llama-3.1-8b")
    (host,) = work_of(model, CPU).pools
    assert host.weights_bytes == pytest.approx(tensor_bytes(model, "token_embd.weight"), rel=1e-5)


def test_a_tied_embedding_is_read_as_the_head() -> None:
    model = recorded("qwen3-0.6b", "Q8_0")
    assert not any(item.name == "output.weight" for item in model.header.tensors or ())
    (host,) = work_of(model, CPU).pools
    assert host.weights_bytes == pytest.approx(tensor_bytes(model), rel=1e-5)


def test_of_the_experts_those_that_are_used_are_read() -> None:
    model = recorded("qwen3-30b-a3b")
    experts = sum(item.size_bytes for item in model.header.tensors or () if "_exps" in item.name)
    rest = tensor_bytes(model, "token_embd.weight") - experts
    (host,) = work_of(model, CPU).pools
    assert host.weights_bytes == pytest.approx(rest + experts * 8 / 128, rel=1e-5)


def test_experts_on_the_host_are_read_there() -> None:
    model = recorded("qwen3-30b-a3b")
    experts = sum(item.size_bytes for item in model.header.tensors or () if "_exps" in item.name)
    rest = tensor_bytes(model, "token_embd.weight") - experts
    work = work_of(model, replace(CUDA, cpu_moe=True))
    read = {pool.pool: pool.weights_bytes for pool in work.pools}
    assert read[HOST] == pytest.approx(experts * 8 / 128, rel=1e-4)
    assert read[DEVICE] == pytest.approx(rest, rel=1e-3)
    assert work.crossings == 2 * 48


def test_a_cache_is_read_as_far_as_it_is_filled() -> None:
    work = work_of(recorded("llama-3.1-8b"), CUDA)
    device = next(pool for pool in work.pools if pool.pool == DEVICE)
    token = 32 * 2 * 8 * 128 * 2  # layers, K and V, heads, width, f16
    assert device.cache_bytes(0) == 0
    assert device.cache_bytes(1000) == pytest.approx(1000 * token)
    assert device.cache_bytes(8192) == device.cache_bytes(10**9) == 8192 * token


def test_sequences_with_a_cache_of_their_own_read_only_that() -> None:
    model = recorded("llama-3.1-8b")
    load = Load(context_tokens=8192, sequences=4, unified=False)
    work = reads_per_token(model, load, CUDA, estimate(model, load, CUDA))
    device = next(pool for pool in work.pools if pool.pool == DEVICE)
    assert work.context_tokens == 2048
    assert device.cache_bytes(2048) == 2048 * 32 * 2 * 8 * 128 * 2


def test_a_window_is_read_whole_once_it_is_full() -> None:
    work = work_of(recorded("gemma-3-27b"), CUDA, 32_768)
    device = next(pool for pool in work.pools if pool.pool == DEVICE)
    assert {cache.full_tokens for cache in device.caches} == {1024, 32_768}
    sliding = next(cache for cache in device.caches if cache.full_tokens == 1024)
    assert sliding.filled_bytes(512) == sliding.full_bytes / 2
    assert sliding.filled_bytes(1024) == sliding.filled_bytes(30_000) == sliding.full_bytes


def test_a_state_is_read_and_written_whatever_was_said() -> None:
    work = work_of(recorded("mamba-2.8b"), CUDA)
    device = next(pool for pool in work.pools if pool.pool == DEVICE)
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
    fewer = llama_cpp(recorded(name), machine, replace(CUDA, n_gpu_layers=count), filled=filled)
    further = llama_cpp(
        recorded(name), machine, replace(CUDA, n_gpu_layers=count + 1), filled=filled
    )
    assert all(
        mine >= theirs * (1 - 1e-9)
        for mine, theirs in zip(further.decode, fewer.decode, strict=True)
    )


@law
@given(name=models_of, filled=FILLS, more=FILLS, setup=st.sampled_from((CPU, CUDA, replace(CUDA, n_gpu_layers=9))))  # fmt: skip
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
@given(used=st.integers(1, 127), setup=st.sampled_from((CPU, CUDA, replace(CUDA, cpu_moe=True))))
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
    on_host = replace(CUDA, n_gpu_layers=0)  # the card holds nothing: what it reads does not matter
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
    full = llama_cpp(model, card(900), replace(CUDA, n_gpu_layers=ALL_LAYERS))
    assert full.decode == llama_cpp(model, card(900), replace(CUDA, n_gpu_layers=33)).decode


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
        model, what_if_machine(devices=("2x RTX 4090",)), replace(CUDA, devices=(DeviceSlot(),) * 2)
    )
    assert two.decode == pytest.approx(one.decode, rel=0.01)


# -- calibration -----------------------------------------------------------------------------


def test_a_measurement_moves_and_narrows_the_range() -> None:
    machine = what_if_machine(devices=("H200",))
    plain = llama_cpp(recorded("llama-3.1-8b"), machine, CUDA, filled=64)
    assert plain.prefill is not None
    result = MeasuredRatio(
        decode=258.9 / middle(plain.decode), prefill=8618 / middle(plain.prefill)
    )
    again = llama_cpp(recorded("llama-3.1-8b"), machine, CUDA, filled=64, calibration=result)
    assert again.decode == pytest.approx((258.9 * 0.85, 258.9 * 1.15))
    assert again.prefill == pytest.approx((8618 * 0.85, 8618 * 1.15))
    # ... and helps with another model, another mix and a fuller cache
    others = (("llama-3.1-8b", "Q4_K_M", 16384, 210.4), ("llama-3.2-1b", "Q4_K_M", 64, 862.9), ("mamba-2.8b", "Q8_0", 64, 251.8))  # fmt: skip
    for name, quant, filled, measured in others:
        before = llama_cpp(recorded(name, quant), machine, CUDA, filled=filled)
        after = llama_cpp(recorded(name, quant), machine, CUDA, filled=filled, calibration=result)
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
    pace = EngineSpeed(
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
