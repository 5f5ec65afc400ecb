"""Expected speeds: ranges that contain the measurements; laws; how each speed is known."""

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
from edgekit.engines.llamacpp.speed import READING, sequence_run
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
from edgekit.engines.vllm.speed import EAGER_READING
from edgekit.engines.vllm.speed import READING as VLLM_READING
from edgekit.engines.vllm.types import VllmSetup
from edgekit.formats.records import load_records
from edgekit.machine.calibration import device_key
from edgekit.machine.types import (
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


def config_model(name: str) -> Model:
    row = next(row for row in rows("vllm.jsonl.gz") if row["model"] == name)
    header = config_header(row["config"])
    return Model(header=header, geometry=read_geometry(header))


def llama_cpp_speed(
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


def speed_on_engine(task: Task, setup: Any, filled: tuple[int, int] | None = None) -> Speed | None:
    engine = engine_named(task.engine)
    bill = engine.estimate(task.model, task.load, setup)
    placement = Placement(setup=setup, budgets=(), because="", cards=task.machine.devices)
    return engine.speed(task, placement, bill, filled)


CPU, CUDA = LlamaCppSetup(backend=Backend.CPU), LlamaCppSetup(backend=Backend.CUDA)


def with_host(machine: Machine, bandwidth_gb_s: int, cores: int) -> Machine:
    assert machine.host is not None
    host = replace(machine.host, bandwidth_bytes_per_s=bandwidth_gb_s * GB)
    return replace(machine, host=host, cores=cores)


# -- measurements ----------------------------------------------------------------------------

# docs/data/speeds.tsv: device and placement, model, tokens in the cache, measured and expected speeds.
SPEEDS = Path(__file__).parents[3] / "docs" / "data" / "speeds.tsv"
MEASURED = list(csv.DictReader(SPEEDS.read_text(encoding="utf-8").splitlines(), delimiter="\t"))
BACKENDS = {Vendor.NVIDIA: Backend.CUDA, Vendor.APPLE: Backend.METAL, Vendor.AMD: Backend.VULKAN}
# Without a GPU: GiB of RAM, its bandwidth in GB/s, and cores.
HOSTS = {"2 cores": (16, 18, 2), "13900K": (64, 102, 24)}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "-ngl 16": {"n_gpu_layers": 16},
    "-ngl 0": {"n_gpu_layers": 0},
    "CPU alone": {"backend": Backend.CPU},
    "experts on the host": {"cpu_moe": True},
}


def expected_speed(row: dict[str, str]) -> Speed | None:
    device, _, placement = row["device"].partition(", ")
    name, quant = row["model"].split(" ", 1)
    filled = int(row["filled"].replace(",", ""))
    if placement == "MLX":  # its benchmark writes 128 tokens
        model, load = config_model(name), Load(context_tokens=filled + 128)
        quantize = Quantize(packing=Packing(bits=int(quant.removesuffix(" bit")), group_size=64))
        machine = what_if_machine(devices=(device,))
        task = Task(model=model, engine="mlx", machine=machine, load=load)
        return speed_on_engine(task, MlxSetup(quantize=quantize), (filled, filled + 128))
    mix = "Q4_0" if quant == "Q4_0" else None  # no header with Q4_0 is recorded
    model = recorded(name, "Q4_K_M" if mix else quant)
    if device in HOSTS:
        ram_gib, bandwidth_gb_s, cores = HOSTS[device]
        machine, setup = with_host(cpu(ram_gib), bandwidth_gb_s, cores), CPU
    else:
        machine = what_if_machine(devices=(device,), ram="128G" if placement else None)
        slots = (DeviceSlot(),) * len(machine.devices)
        setup = LlamaCppSetup(backend=BACKENDS[machine.devices[0].vendor], devices=slots)
        if placement:  # measured on our own machine with an H200
            machine = with_host(machine, 95, cores=16)
            setup = replace(setup, **PLACEMENTS[placement])
    return llama_cpp_speed(model, machine, replace(setup, mix=mix), filled=filled)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: " ".join(list(row.values())[:4]))
def test_measured_speed_is_within_the_expected_range(row: dict[str, str]) -> None:
    speed = expected_speed(row)
    assert speed is not None
    assert speed.decode[1] / speed.decode[0] < 7
    for name, expected in (("decode", speed.decode), ("prompt", speed.prefill)):
        if row[name]:
            assert expected is not None
            ends = (f"{end:.1f}" if end < 20 else f"{end:,.0f}" for end in expected)
            assert " to ".join(ends) == row[f"{name} expected"]
            assert expected[0] <= float(row[name].replace(",", "")) <= expected[1]


# -- laws ------------------------------------------------------------------------------------

NAMES = ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-27b", "deepseek-v2-lite", "granite-4-h-tiny", "llama-3.2-1b")  # fmt: skip
FILLS = st.integers(0, 8192)
law = settings(deadline=None, max_examples=40 if LONG else 10)
model_names = st.sampled_from(NAMES)


def card(bandwidth_gb_s: int) -> Machine:
    machine = with_host(cards(80), 60, cores=8)
    (device,) = machine.devices
    return replace(machine, devices=(replace(device, bandwidth_bytes_per_s=bandwidth_gb_s * GB),))


def is_no_slower(one: Speed, other: Speed) -> bool:
    assert one.prefill is not None
    assert other.prefill is not None
    return is_at_least((*one.decode, *one.prefill), (*other.decode, *other.prefill))


def is_at_least(speeds: tuple[float, ...], others: tuple[float, ...]) -> bool:
    return all(speed >= other * (1 - 1e-9) for speed, other in zip(speeds, others, strict=True))


@law
@given(name=model_names, bandwidth=st.integers(20, 8000), more=st.integers(0, 8000), filled=FILLS)
def test_more_bandwidth_is_never_slower(name: str, bandwidth: int, more: int, filled: int) -> None:
    slow = llama_cpp_speed(recorded(name), card(bandwidth), CUDA, filled=filled)
    fast = llama_cpp_speed(recorded(name), card(bandwidth + more), CUDA, filled=filled)
    assert is_no_slower(fast, slow)


@law
@given(name=model_names, count=st.integers(0, 64), filled=FILLS)
def test_more_layers_on_the_card_are_never_slower(name: str, count: int, filled: int) -> None:
    machine = card(1000)
    fewer, more = (
        llama_cpp_speed(recorded(name), machine, replace(CUDA, n_gpu_layers=layers), filled=filled)
        for layers in (count, count + 1)
    )
    assert is_at_least(more.decode, fewer.decode)


@law
@given(name=model_names, filled=FILLS, more=FILLS, setup=st.sampled_from((CPU, CUDA, replace(CUDA, n_gpu_layers=9))))  # fmt: skip
def test_fuller_context_is_never_faster(
    name: str, filled: int, more: int, setup: LlamaCppSetup
) -> None:
    load = Load(context_tokens=16_384)
    bill = estimate(recorded(name), load, setup)
    run = sequence_run(recorded(name), load, setup, bill, card(900))
    shorter = modelled_speed(run, (filled, filled))
    longer = modelled_speed(run, (filled + more, filled + more))
    assert shorter is not None
    assert longer is not None
    assert is_no_slower(shorter, longer)


@law
@given(used=st.integers(1, 127), setup=st.sampled_from((CPU, CUDA, replace(CUDA, cpu_moe=True))))
def test_more_experts_per_token_are_never_faster(used: int, setup: LlamaCppSetup) -> None:
    model = recorded("qwen3-30b-a3b")
    few, many = (with_used_experts(model, count) for count in (used, used + 1))
    assert is_no_slower(
        llama_cpp_speed(few, card(900), setup), llama_cpp_speed(many, card(900), setup)
    )


def with_used_experts(model: Model, used: int) -> Model:
    layers = tuple(
        replace(layer, experts=replace(layer.experts, used=used)) if layer.experts else layer
        for layer in model.geometry.layers
    )
    return Model(header=model.header, geometry=replace(model.geometry, layers=layers))


READINGS = (*READING.values(), CPU_READING, METAL_READING, VLLM_READING, EAGER_READING)


@pytest.mark.parametrize("reading", READINGS)
@law
@given(bandwidth=st.floats(1, 1e13), more=st.floats(0, 1e13))
def test_rates_never_fall_with_more_bandwidth(
    reading: Reading, bandwidth: float, more: float
) -> None:
    slow, fast = reading.rates(bandwidth)
    assert 0 < slow <= fast <= bandwidth
    more_slow, more_fast = reading.rates(bandwidth + more)
    assert more_slow >= slow
    assert more_fast >= fast


# -- the basis and the explanation -----------------------------------------------------------


def test_speed_with_unknown_ram_bandwidth_is_assumed() -> None:
    speed = llama_cpp_speed(recorded("llama-3.1-8b"), cpu(64), CPU)
    assert speed.basis is Basis.ASSUMED
    assert "19 to 105 GB/s (assumed, typical of desktops)" in speed.because
    known = llama_cpp_speed(recorded("llama-3.1-8b"), with_host(cpu(64), 60, cores=8), CPU)
    assert known.basis is Basis.MODELLED
    assert speed.decode[0] < known.decode[0] < known.decode[1] < speed.decode[1]


def test_host_speed_of_many_cores_is_that_of_servers() -> None:
    machine = replace(cpu(512), cores=64)
    assert host_speed(machine).bandwidth == (75 * GB, 600 * GB)
    assert "servers" in host_speed(machine).text


def test_host_speed_of_few_cores_is_limited_by_the_cores() -> None:
    two, eight = (with_host(cpu(64), 200, cores=count) for count in (2, 8))
    assert host_speed(two).rates()[1] == 2 * 16 * GB
    assert host_speed(eight).rates()[1] == 8 * 16 * GB
    assert host_speed(with_host(cpu(64), 200, cores=64)).rates()[1] == pytest.approx(170 * GB)


def test_speed_is_unknown_if_a_card_of_unknown_bandwidth_is_read() -> None:
    model, load = recorded("llama-3.1-8b"), Load(context_tokens=4096)
    bill = estimate(model, load, CUDA)
    assert modelled_speed(sequence_run(model, load, CUDA, bill, cards(24))) is None
    on_host = replace(CUDA, n_gpu_layers=0)  # nothing is read from the card
    bill = estimate(model, load, on_host)
    machine = with_host(cards(24), 60, cores=8)
    assert modelled_speed(sequence_run(model, load, on_host, bill, machine)) is not None


def test_prefill_is_unknown_on_a_card_of_unknown_capability() -> None:
    (device,) = card(900).devices
    machine = replace(card(900), devices=(replace(device, capability=None),))
    speed = llama_cpp_speed(recorded("llama-3.1-8b"), machine, CUDA)
    assert speed.prefill is None


def test_because_has_the_bytes_read_and_the_bandwidth() -> None:
    speed = llama_cpp_speed(recorded("llama-3.1-8b"), card(900), CUDA, filled=(0, 8192))
    assert speed.because == (
        "a token reads 4.30 GiB of weights and up to 1.00 GiB of cache (8,192 tokens) from 80 GiB card at 900 GB/s"
    )


def test_speed_with_all_layers_is_that_with_each_layer_on_the_card() -> None:
    model = recorded("llama-3.1-8b")
    all_layers = llama_cpp_speed(model, card(900), replace(CUDA, n_gpu_layers=ALL_LAYERS))
    counted = llama_cpp_speed(model, card(900), replace(CUDA, n_gpu_layers=33))
    assert all_layers.decode == counted.decode


# -- several cards ---------------------------------------------------------------------------


def vllm_speed(machine: Machine, **flags: Any) -> Speed:
    model, load = config_model("llama-3.1-8b"), Load(context_tokens=8192)
    task = Task(model=model, engine="vllm", machine=machine, load=load)
    speed = speed_on_engine(task, VllmSetup(**flags))
    assert speed is not None
    return speed


def test_ranks_of_vllm_read_at_once_and_stages_in_turn() -> None:
    machine = what_if_machine(devices=("2x H100 80GB",))
    single = vllm_speed(machine)
    ranks = vllm_speed(machine, tensor_parallel_size=2)
    stages = vllm_speed(machine, pipeline_parallel_size=2)
    assert single.decode[0] < ranks.decode[0] < 2 * single.decode[0]
    assert single.decode[1] < ranks.decode[1] < 2 * single.decode[1]
    assert stages.decode == pytest.approx(single.decode, rel=0.1)
    assert stages.decode[0] <= single.decode[0]
    assert "on each of 2 cards at once; for a single request" in ranks.because


def test_vllm_without_cuda_graphs_is_slower() -> None:
    machine = what_if_machine(devices=("H100 80GB",))
    assert vllm_speed(machine, enforce_eager=True).decode[1] < vllm_speed(machine).decode[1]


def test_layers_on_two_cards_are_read_in_turn() -> None:
    model = recorded("llama-3.1-70b")
    one = llama_cpp_speed(model, what_if_machine(devices=("RTX 4090",)), CUDA)
    two_devices = replace(CUDA, devices=(DeviceSlot(),) * 2)
    two = llama_cpp_speed(model, what_if_machine(devices=("2x RTX 4090",)), two_devices)
    assert two.decode == pytest.approx(one.decode, rel=0.01)


# -- calibration -----------------------------------------------------------------------------

H200 = what_if_machine(devices=("H200",))


def calibration_on_h200() -> MeasuredRatio:
    """Measured with Llama 3.1 8B: 258.9 tokens/s, and 8,618 tokens/s in a prompt."""
    plain = llama_cpp_speed(recorded("llama-3.1-8b"), H200, CUDA, filled=64)
    assert plain.prefill is not None
    return MeasuredRatio(decode=258.9 / middle(plain.decode), prefill=8618 / middle(plain.prefill))


def test_calibrated_speed_is_within_15_percent_of_the_measurement() -> None:
    model, calibration = recorded("llama-3.1-8b"), calibration_on_h200()
    speed = llama_cpp_speed(model, H200, CUDA, filled=64, calibration=calibration)
    assert speed.decode == pytest.approx((258.9 * 0.85, 258.9 * 1.15))
    assert speed.prefill == pytest.approx((8618 * 0.85, 8618 * 1.15))


@pytest.mark.parametrize(
    ("name", "quant", "filled", "measured"),
    [
        ("llama-3.1-8b", "Q4_K_M", 16384, 210.4),
        ("llama-3.2-1b", "Q4_K_M", 64, 862.9),
        ("mamba-2.8b", "Q8_0", 64, 251.8),
    ],
)
def test_calibration_narrows_the_range_of_other_models_and_fills(
    name: str, quant: str, filled: int, measured: float
) -> None:
    model, calibration = recorded(name, quant), calibration_on_h200()
    plain = llama_cpp_speed(model, H200, CUDA, filled=filled)
    calibrated = llama_cpp_speed(model, H200, CUDA, filled=filled, calibration=calibration)
    assert calibrated.decode[1] / calibrated.decode[0] < plain.decode[1] / plain.decode[0]
    assert calibrated.decode[0] * 0.8 < measured < calibrated.decode[1] * 1.25


def test_calibrated_range_still_depends_on_the_fill() -> None:
    model, exact = recorded("llama-3.1-8b"), MeasuredRatio(decode=1.0, spread=0.0)
    speed, full, empty = (
        llama_cpp_speed(model, card(900), CUDA, filled=filled, calibration=exact)
        for filled in ((0, 8192), 8192, 0)
    )
    assert speed.decode == pytest.approx((full.decode[0], empty.decode[1]))
    assert full.decode[0] < empty.decode[0]


def test_calibration_scales_llama_cpp_but_not_vllm() -> None:
    machine = replace(what_if_machine(devices=("H100 80GB",)), what_if=False)
    engine_speed = EngineSpeed(
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
    measurement = EngineMeasured(
        engine="llama.cpp",
        through="xllamacpp",
        version="1",
        host="",
        device=device_key(machine, machine.devices),
        date="2026-11-16",
        pace=engine_speed,
    )
    calibrated = replace(machine, measured=Measured(engines=(measurement,)))
    assert vllm_speed(calibrated) == vllm_speed(machine)
    model, load = recorded("llama-3.1-8b"), Load(context_tokens=8192)
    task = Task(model=model, engine="llama.cpp", machine=calibrated, load=load)
    speed = speed_on_engine(task, CUDA)
    assert speed is not None
    assert "scaled to another model" in speed.because


def test_generations_of_a_vendor_are_in_rising_order() -> None:
    records = load_records("edgekit.engines", "throughput.json")
    for vendor in ("nvidia", "apple", "amd", "intel"):
        since = [record["since"] for record in records if record.get("vendor") == vendor]
        assert since == sorted(since)


NAMED_READINGS = {
    "cpu": CPU_READING,
    "metal": METAL_READING,
    "llama.cpp on CUDA": READING[Backend.CUDA],
    "llama.cpp on Vulkan": READING[Backend.VULKAN],
    "vLLM": VLLM_READING,
    "vLLM without CUDA graphs": EAGER_READING,
}


def test_every_reading_of_the_records_is_used() -> None:
    records = load_records("edgekit.engines", "throughput.json")
    assert {record["reading"] for record in records if "reading" in record} == set(NAMED_READINGS)
    for name, constant in NAMED_READINGS.items():
        assert reading(name) is constant
