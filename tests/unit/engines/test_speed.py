"""Expected speeds: laws, intervals, how each speed is known. test_speed_table.py compares them with measurements."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import config_header, engine_models, rows
from tests.thoroughness import LONG
from tests.unit.plan.machines import cards, cpu

from edgekit.bill.types import Load, Moment, Placement, Speed, Task
from edgekit.engines import engine_named, speed_formula
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.speed import measured_ratio, sequence_run
from edgekit.engines.llamacpp.types import (
    ALL_LAYERS,
    Backend,
    DeviceSlot,
    LlamaCppSetup,
    SplitMode,
    read_version,
)
from edgekit.engines.speed import MeasuredRatio, modelled_speed
from edgekit.engines.speed_formula import constants, constants_digest
from edgekit.engines.vllm.speed import run_of as vllm_run_of
from edgekit.engines.vllm.types import VllmSetup
from edgekit.formats.types import Quantization
from edgekit.machine.calibration import device_key
from edgekit.machine.types import (
    EngineMeasured,
    EngineSpeed,
    Machine,
    Measured,
)
from edgekit.machine.what_if import what_if_machine
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.units import Basis

GB = 10**9
SHORT = Moment()


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
    filled: int = 0,
    users: int = 1,
    prompt: int = 512,
    calibration: MeasuredRatio | None = None,
) -> Speed:
    load = Load(context_tokens=max(1024, filled))
    bill = estimate(model, load, setup)
    run = sequence_run(model, load, setup, bill, machine)
    speed = modelled_speed(run, Moment(filled, prompt_tokens=prompt, users=users), calibration)
    assert speed is not None
    return speed


def speed_on_engine(task: Task, setup: Any, moment: Moment = SHORT) -> Speed | None:
    engine = engine_named(task.engine)
    bill = engine.estimate(task.model, task.load, setup)
    placement = Placement(setup=setup, budgets=(), because="", cards=task.machine.devices)
    return engine.speed(task, placement, bill, moment)


CPU, CUDA = LlamaCppSetup(backend=Backend.CPU), LlamaCppSetup(backend=Backend.CUDA)


def with_host(machine: Machine, bandwidth_gb_s: int, cores: int) -> Machine:
    assert machine.host is not None
    host = replace(machine.host, bandwidth_bytes_per_s=bandwidth_gb_s * GB)
    return replace(machine, host=host, cores=cores)


# -- laws ------------------------------------------------------------------------------------

NAMES = ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-27b", "deepseek-v2-lite", "granite-4-h-tiny", "llama-3.2-1b")  # fmt: skip
FILLS = st.integers(0, 8192)
law = settings(deadline=None, max_examples=40 if LONG else 10)
model_names = st.sampled_from(NAMES)


def card(bandwidth_gb_s: int) -> Machine:
    machine = with_host(cards(80), 60, cores=8)
    (device,) = machine.devices
    known = replace(
        device,
        bandwidth_bytes_per_s=bandwidth_gb_s * GB,
        fp32_flops=36 * 10**12,
        matrix_flops=71 * 10**12,
    )
    return replace(machine, devices=(known,))


def is_no_slower(one: Speed, other: Speed) -> bool:
    return is_at_least(typical(one), typical(other))


def typical(speed: Speed) -> tuple[float, float]:
    assert speed.typical_prefill is not None
    return speed.typical, speed.typical_prefill


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
    assert is_at_least((more.typical,), (fewer.typical,))


@law
@given(name=model_names, filled=FILLS, more=FILLS, setup=st.sampled_from((CPU, CUDA, replace(CUDA, n_gpu_layers=9))))  # fmt: skip
def test_fuller_context_is_never_faster(
    name: str, filled: int, more: int, setup: LlamaCppSetup
) -> None:
    load = Load(context_tokens=16_384)
    bill = estimate(recorded(name), load, setup)
    run = sequence_run(recorded(name), load, setup, bill, card(900))
    shorter = modelled_speed(run, Moment(filled))
    longer = modelled_speed(run, Moment(filled + more))
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


@law
@given(name=model_names, users=st.integers(1, 64), filled=FILLS)
def test_more_users_get_less_each_but_more_together(name: str, users: int, filled: int) -> None:
    few, more = (
        llama_cpp_speed(recorded(name), card(900), CUDA, filled=filled, users=count)
        for count in (users, users + 1)
    )
    assert more.typical < few.typical
    assert more.typical * (users + 1) > few.typical * users * 0.98


@law
@given(name=model_names, prompt=st.integers(1, 4096), filled=FILLS)
def test_longer_prompt_takes_longer(name: str, prompt: int, filled: int) -> None:
    short, long = (
        llama_cpp_speed(recorded(name), card(900), CUDA, filled=filled, prompt=tokens)
        for tokens in (prompt, prompt + 64)
    )
    assert short.typical_prefill is not None
    assert long.typical_prefill is not None
    assert (prompt + 64) / long.typical_prefill > prompt / short.typical_prefill


def test_constants_digest_changes_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    content = Path(speed_formula.__file__).with_name("speed.json").read_bytes()
    assert constants_digest() == hashlib.sha256(content).hexdigest()[:12]
    refitted = content.replace(b'"weights": ', b'"weights": 1', 1)
    monkeypatch.setattr(speed_formula, "_fitted_file", lambda: refitted)
    assert constants_digest.__wrapped__() != constants_digest()


def test_constants_are_positive_and_intervals_contain_their_typical_value() -> None:
    values = constants()
    assert all(value > 0 for value in values.values())
    spreads = {name: value for name, value in values.items() if name.startswith("spread.")}
    assert all(1.1 < value < 5 for value in spreads.values())
    assert {name.split(".")[2] for name in spreads} >= {
        "card", "new_card", "cpu", "split", "users", "assumed", "calibrated",
    }  # fmt: skip


# -- the basis and the explanation -----------------------------------------------------------


def test_speed_with_unknown_ram_bandwidth_is_assumed() -> None:
    speed = llama_cpp_speed(recorded("llama-3.1-8b"), cpu(64), CPU)
    assert speed.basis is Basis.ASSUMED
    assert '70 GB/s (assumed; give the RAM\'s speed with --ram "64G DDR5-6000")' in speed.because
    known = llama_cpp_speed(recorded("llama-3.1-8b"), with_host(cpu(64), 60, cores=8), CPU)
    assert known.basis is Basis.MODELLED
    assert width(known) < width(speed)


def width(speed: Speed) -> float:
    slow, fast = speed.decode
    return fast / slow


def test_generation_that_was_not_measured_has_a_wider_interval() -> None:
    measured, new = (
        llama_cpp_speed(recorded("llama-3.1-8b"), what_if_machine(devices=(name,)), CUDA)
        for name in ("RTX 4090", "B200")
    )
    assert width(measured) < width(new)


def test_speed_is_unknown_if_a_card_of_unknown_bandwidth_is_read() -> None:
    model, load = recorded("llama-3.1-8b"), Load(context_tokens=4096)
    bill = estimate(model, load, CUDA)
    assert modelled_speed(sequence_run(model, load, CUDA, bill, cards(24)), SHORT) is None
    on_host = replace(CUDA, n_gpu_layers=0)  # nothing is read from the card
    bill = estimate(model, load, on_host)
    machine = with_host(cards(24), 60, cores=8)
    assert modelled_speed(sequence_run(model, load, on_host, bill, machine), SHORT) is not None


def test_prefill_is_unknown_on_a_card_of_unknown_compute() -> None:
    (device,) = card(900).devices
    unknown = replace(device, fp32_flops=None, fp16_flops=None, matrix_flops=None)
    machine = replace(card(900), devices=(unknown,))
    speed = llama_cpp_speed(recorded("llama-3.1-8b"), machine, CUDA)
    assert speed.prefill is None


def test_because_has_the_bytes_read_and_the_bandwidth() -> None:
    speed = llama_cpp_speed(recorded("llama-3.1-8b"), card(900), CUDA, filled=8192)
    assert speed.because == (
        "a token reads 4.30 GiB of weights and 1.00 GiB of cache (8,192 tokens) from 80 GiB card at 900 GB/s"
    )


def test_speed_with_all_layers_is_that_with_each_layer_on_the_card() -> None:
    model = recorded("llama-3.1-8b")
    all_layers = llama_cpp_speed(model, card(900), replace(CUDA, n_gpu_layers=ALL_LAYERS))
    counted = llama_cpp_speed(model, card(900), replace(CUDA, n_gpu_layers=33))
    assert all_layers.decode == counted.decode


# -- several cards ---------------------------------------------------------------------------


def vllm_speed(machine: Machine, moment: Moment = SHORT, **flags: Any) -> Speed:
    model, load = config_model("llama-3.1-8b"), Load(context_tokens=8192)
    task = Task(model=model, engine="vllm", machine=machine, load=load)
    speed = speed_on_engine(task, VllmSetup(**flags), moment)
    assert speed is not None
    return speed


def test_vllm_without_cuda_graphs_is_slower() -> None:
    machine = what_if_machine(devices=("H100 80GB",))
    assert vllm_speed(machine, enforce_eager=True).decode[1] < vllm_speed(machine).decode[1]


@pytest.mark.parametrize(
    ("stored", "weights"),
    [
        (None, "f16"),
        (Quantization(method="fp8"), "q8"),
        (Quantization(method="compressed-tensors", format="float-quantized", bits=8), "q8"),
        (Quantization(method="gptq", bits=8), "q8"),
        (Quantization(method="awq", bits=4), "int4"),
        (Quantization(method="modelopt", format="NVFP4", bits=4), "fp4"),
        (Quantization(method="mxfp4"), "fp4"),
    ],
)
def test_packing_of_vllms_weights(stored: Quantization | None, weights: str) -> None:
    plain, load, setup = config_model("llama-3.1-8b"), Load(context_tokens=8192), VllmSetup()
    bill = engine_named("vllm").estimate(plain, load, setup)
    model = replace(plain, header=replace(plain.header, quantization=stored))
    machine = what_if_machine(devices=("H100 80GB",))
    task = Task(model=model, engine="vllm", machine=machine, load=load)
    placement = Placement(setup=setup, budgets=(), because="", cards=machine.devices)
    assert vllm_run_of(task, placement, bill).weights == weights


BIG = ("llama-3.1-70b", "gemma-3-27b")
SPLITS = (SplitMode.TENSOR, SplitMode.ROW)


def speed_on_cards(
    name: str, device: str, count: int, mode: SplitMode = SplitMode.LAYER, **moment: Any
) -> Speed:
    setup = replace(CUDA, devices=(DeviceSlot(),) * count, split_mode=mode)
    if mode is SplitMode.ROW:  # later builds do not have it
        setup = replace(setup, **read_version("b9294")._asdict())
    machine = what_if_machine(devices=(f"{count}x {device}",))
    return llama_cpp_speed(recorded(name), machine, setup, **moment)


@law
@given(
    name=st.sampled_from(BIG),
    device=st.sampled_from(("RTX 3090", "RTX 4090", "H100 80GB", "RTX 5090")),
    count=st.integers(2, 4),
    mode=st.sampled_from(SPLITS),
    filled=FILLS,
)
def test_splitting_each_layer_of_a_big_model_is_faster_than_dividing_the_layers(
    name: str, device: str, count: int, mode: SplitMode, filled: int
) -> None:
    single = speed_on_cards(name, device, 1, filled=filled)
    in_turn = speed_on_cards(name, device, count, filled=filled)
    at_once = speed_on_cards(name, device, count, mode, filled=filled)
    assert 0.9 * single.typical < in_turn.typical <= single.typical * 1.01
    assert in_turn.typical < at_once.typical < count * single.typical
    assert single.typical_prefill is not None
    assert at_once.typical_prefill is not None
    assert single.typical_prefill < at_once.typical_prefill < count * single.typical_prefill


def test_cards_that_split_every_layer_lose_the_time_to_add_up_their_results() -> None:
    single = speed_on_cards("llama-3.1-70b", "H100 80GB", 1)
    at_once = speed_on_cards("llama-3.1-70b", "H100 80GB", 2, SplitMode.TENSOR)
    values, adding_s = constants(), 2 * 80 * constants()["reducing_us"] / 1e6
    each_token_s = values.product("token_us", "cuda") / 1e6
    layers_s = 81 * values.product("layer_us", "cuda", "sm_90") / 1e6
    fixed_s = each_token_s + layers_s
    expected_s = fixed_s + (1 / single.typical - fixed_s) / 2 + adding_s
    assert 1 / at_once.typical == pytest.approx(expected_s, rel=0.01)


def test_because_says_how_the_cards_work_together() -> None:
    in_turn = speed_on_cards("llama-3.1-70b", "H100 80GB", 2)
    at_once = speed_on_cards("llama-3.1-70b", "H100 80GB", 2, SplitMode.TENSOR)
    assert in_turn.because.endswith("at 3,352 GB/s, on 2 cards in turn")
    assert at_once.because.endswith("at 3,352 GB/s, on 2 cards at once")
    stages = vllm_speed(what_if_machine(devices=("2x H100 80GB",)), pipeline_parallel_size=2)
    assert stages.because.endswith(", in each of 2 stages in turn; for a single request")


@pytest.mark.parametrize("filled", [0, 1024, 8192])
@pytest.mark.parametrize("count", [2, 4])
def test_ranks_of_vllm_are_faster_and_stages_are_not(count: int, filled: int) -> None:
    machine, at = what_if_machine(devices=(f"{count}x H100 80GB",)), Moment(filled)
    single = vllm_speed(machine, at)
    ranks = vllm_speed(machine, at, tensor_parallel_size=count)
    stages = vllm_speed(machine, at, pipeline_parallel_size=count)
    assert single.typical < ranks.typical < count * single.typical
    assert single.typical_prefill is not None
    assert ranks.typical_prefill is not None
    assert single.typical_prefill < ranks.typical_prefill < count * single.typical_prefill
    assert 0.9 * single.typical < stages.typical < single.typical
    assert stages.typical_prefill == pytest.approx(single.typical_prefill, rel=0.02)


def test_several_cards_read_a_long_prompt_like_a_pipeline() -> None:
    model, setup = recorded("llama-3.1-8b"), replace(CUDA, devices=(DeviceSlot(),) * 4)
    machine = what_if_machine(devices=("4x RTX 4090",))
    short, long = (llama_cpp_speed(model, machine, setup, prompt=tokens) for tokens in (512, 8192))
    assert short.typical_prefill is not None
    assert long.typical_prefill is not None
    assert 1.3 * short.typical_prefill < long.typical_prefill < 4 * short.typical_prefill


@pytest.mark.parametrize("changes", [{"cpu_moe": True}, {"n_gpu_layers": 20}, {"split_mode": SplitMode.TENSOR}])  # fmt: skip
def test_cards_work_in_turn_on_a_prompt_only_if_they_hold_everything(
    changes: dict[str, Any],
) -> None:
    model, setup = recorded("qwen3-30b-a3b"), replace(CUDA, devices=(DeviceSlot(),) * 4, **changes)
    load = Load(context_tokens=4096)
    machine = what_if_machine(devices=("4x RTX 4090",), ram="64G DDR5-6000")
    run = sequence_run(model, load, setup, estimate(model, load, setup), machine)
    assert not run.is_pipelined
    whole = replace(CUDA, devices=(DeviceSlot(),) * 4)
    bill = estimate(model, load, whole)
    assert sequence_run(model, load, whole, bill, machine).is_pipelined


@pytest.mark.parametrize("setup", [CPU, CUDA, replace(CUDA, cpu_moe=True)])
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "llama-3.1-8b"])
def test_short_prompt_takes_no_longer_than_decoding_it(name: str, setup: LlamaCppSetup) -> None:
    machine = what_if_machine(devices=("RTX 4090",), ram="64G DDR5-6000")
    for prompt in (1, 16, 31, 32):
        speed = llama_cpp_speed(recorded(name), machine, setup, prompt=prompt)
        assert speed.typical_prefill is not None
        assert speed.typical_prefill >= speed.typical * 0.99


# -- calibration -----------------------------------------------------------------------------

H200 = what_if_machine(devices=("H200",))


def test_calibration_moves_the_speed_to_the_measurement_and_narrows_it() -> None:
    model = recorded("llama-3.1-8b")
    plain = llama_cpp_speed(model, H200, CUDA, filled=64)
    assert plain.typical_prefill is not None
    ratio = MeasuredRatio(258.9 / plain.typical, 8618 / plain.typical_prefill)
    speed = llama_cpp_speed(model, H200, CUDA, filled=64, calibration=ratio)
    assert speed.typical == pytest.approx(258.9)
    assert speed.typical_prefill == pytest.approx(8618)
    assert width(speed) <= width(plain)
    other = recorded("mamba-2.8b", "Q8_0")
    plain = llama_cpp_speed(other, machine_like_no_other(), CUDA)
    narrowed = llama_cpp_speed(other, machine_like_no_other(), CUDA, calibration=ratio)
    assert width(narrowed) < width(plain)


def machine_like_no_other() -> Machine:
    """A card of a generation that nobody measured."""
    (device,) = card(900).devices
    return replace(card(900), devices=(replace(device, capability=(15, 0)),))


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
        edgekit="0.1",
        date="2026-11-16",
        constants=constants_digest(),
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
    for changes in ({"n_gpu_layers": 9}, {"split_mode": SplitMode.TENSOR, "devices": (DeviceSlot(),) * 2}):  # fmt: skip
        assert measured_ratio(calibrated, replace(CUDA, **changes)) is None
    assert measured_ratio(calibrated, CUDA) is not None
