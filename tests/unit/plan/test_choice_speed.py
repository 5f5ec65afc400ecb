"""plan/choice.py: a requested speed, the time to the first token, and the time to load."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.unit.plan.machines import cards, cpu
from tests.unit.plan.tasks import GEMMA, LLAMA, any_mix, of_config, one_file, rated, task_for

from edgekit.bill.types import USUAL_PROMPT_TOKENS, Job, Load, Moment, Start
from edgekit.bill.waits import NVME_BYTES_PER_S
from edgekit.engines.speed import expected_speed
from edgekit.engines.vllm.types import VllmSetup
from edgekit.machine.types import Disk, HostMeasured, Measured
from edgekit.machine.what_if import requested_machine
from edgekit.plan.choice import choose, download_bytes, judge, result_of
from edgekit.plan.plan import make_plan
from edgekit.units import Basis

CARD = rated(cards(24))
KNOWN_CARD = requested_machine(devices=("RTX 4090",), ram="64G")  # with its arithmetic speed


def test_min_speed_chooses_settings_that_are_as_fast() -> None:
    task = any_mix(GEMMA, CARD)
    usual = judge(task)
    assert usual.typical_speed is not None
    wanted = usual.typical_speed * 1.05
    result = judge(replace(task, min_speed=wanted))
    assert result.is_fast_enough
    assert result.typical_speed is not None
    assert result.typical_speed >= wanted
    assert (usual.quantization, usual.cache) != (result.quantization, result.cache)
    fewer_bits = judge(replace(task, min_speed=usual.typical_speed * 1.1))
    assert fewer_bits.is_fast_enough
    assert fewer_bits.quantization == "IQ4_XS"
    assert not result.fastest


def test_min_speed_below_the_usual_one_changes_nothing() -> None:
    task = any_mix(GEMMA, CARD)
    usual, result = judge(task), judge(replace(task, min_speed=1.0))
    assert replace(result, min_speed=None) == usual
    assert result.is_fast_enough


def test_min_speed_out_of_reach_keeps_the_usual_choice_and_names_the_fastest() -> None:
    task = any_mix(GEMMA, CARD)
    usual = judge(task)
    assert usual.typical_speed is not None
    result = judge(replace(task, min_speed=usual.typical_speed * 2))
    assert (result.quantization, result.context_tokens) == (
        usual.quantization,
        usual.context_tokens,
    )
    assert result.status is usual.status
    assert result.is_too_slow
    assert result.fastest.startswith("the fastest setting that was tried: IQ4_XS, ")
    hopeless = judge(replace(task, min_speed=1e6))
    assert hopeless.is_too_slow
    assert hopeless.fastest == "no other setting that was tried is faster"


def test_min_speed_tries_fewer_bits_in_ram_as_well() -> None:
    task = any_mix(GEMMA, rated(cards(12)))
    with_choice = choose(replace(task, min_speed=judge(task).typical_speed))
    assert judge(task).typical_speed is not None
    slow = choose(replace(task, min_speed=(judge(task).typical_speed or 0.0) * 2.5))
    assert not with_choice.candidate.fitting.placement.whole
    assert slow.fastest is not None
    assert not slow.fastest.ladder.rung(slow.fastest.ladder.last).placement.whole
    assert slow.fastest.variant.name == "IQ4_XS"


def test_min_speed_finds_settings_that_use_less_ram_even_if_they_are_far_faster() -> None:
    task = any_mix(GEMMA, rated(cards(17)))
    slow = judge(task).typical_speed
    assert slow is not None
    assert not choose(task).candidate.fitting.placement.whole
    assert judge(replace(task, min_speed=slow * 3.2)).is_fast_enough


def test_min_speed_does_not_change_what_does_not_fit() -> None:
    task = one_file(LLAMA, cpu(2), min_speed=5.0)
    assert judge(task).failed
    assert not judge(task).is_too_slow
    assert choose(task).fastest is None


def test_unknown_speed_is_neither_fast_enough_nor_too_slow() -> None:
    result = judge(one_file(LLAMA, cards(24), min_speed=5.0))
    assert result.speed is None
    assert result.is_fast_enough is None
    assert not result.is_too_slow


def test_plan_and_check_agree_on_a_requested_speed() -> None:
    for wanted in (1.0, 40.0, 1e4):
        task = any_mix(GEMMA, CARD)
        task = replace(task, min_speed=wanted)
        plan, result = make_plan(task), result_of(choose(task))
        assert plan.result.fastest == result.fastest
        assert plan.result.is_fast_enough == result.is_fast_enough
        assert plan.variant.name == result.quantization


def test_first_token_takes_the_prompt_at_the_prompt_speed() -> None:
    task = one_file(LLAMA, KNOWN_CARD)
    result = judge(task)
    first = result.first_token
    assert first is not None
    assert first.prompt_tokens == USUAL_PROMPT_TOKENS
    priced = choose(task).candidate.priced
    speed = expected_speed(task, priced, Moment(prompt_tokens=USUAL_PROMPT_TOKENS))
    assert speed is not None
    assert speed.typical_prefill is not None
    assert math.isclose(first.typical_s, 1000 / speed.typical_prefill)
    assert first.low_s < first.typical_s < first.high_s


def test_first_token_of_a_long_prompt_counts_its_attention() -> None:
    task = one_file(LLAMA, KNOWN_CARD)
    short, long = (
        judge(replace(task, load=Load(context_tokens=32_768), prompt_tokens=tokens)).first_token
        for tokens in (3000, 30_000)
    )
    assert short is not None
    assert long is not None
    assert long.typical_s > 10 * short.typical_s


def test_prompt_is_that_of_the_job_and_at_most_the_context() -> None:
    task = one_file(LLAMA, KNOWN_CARD)
    result = judge(replace(task, job=Job(prompt_tokens=6000, new_tokens=800)))
    assert result.first_token is not None
    assert result.first_token.prompt_tokens == 6000
    for prompt in (None, 10**15):
        short = judge(replace(task, load=Load(context_tokens=512), prompt_tokens=prompt))
        assert short.first_token is not None
        assert short.first_token.prompt_tokens == 512


def test_load_time_is_that_of_the_measured_disk_or_of_a_usual_one() -> None:
    machine = cpu(64)
    result = judge(one_file(LLAMA, machine))
    assert result.load_time is not None
    assert result.load_time.basis is Basis.ASSUMED
    weights = download_bytes(result)
    assert weights is not None
    assert result.load_time.seconds == weights / NVME_BYTES_PER_S
    disk = Disk(folder="/tmp", read_bytes_per_s=10**9, write_bytes_per_s=1, date="2026-11-16")
    measured = Measured(host=HostMeasured(host="h", date="2026-11-16", disk=disk))
    here = judge(one_file(LLAMA, replace(machine, what_if=False, measured=measured))).load_time
    assert here is not None
    assert (here.seconds, here.because) == (weights / 10**9, "measured here on 2026-11-16")
    elsewhere = judge(one_file(LLAMA, replace(machine, what_if=True, measured=measured))).load_time
    assert elsewhere is not None
    assert elsewhere.basis is Basis.ASSUMED


def test_speed_on_gpu_is_known_only_if_a_part_is_in_ram() -> None:
    assert make_plan(one_file(LLAMA, CARD)).on_gpu_tokens_per_s is None
    assert make_plan(one_file(LLAMA, cpu(64))).on_gpu_tokens_per_s is None
    divided = make_plan(one_file(GEMMA, rated(cards(12))))
    assert divided.speed is not None
    assert divided.on_gpu_tokens_per_s is not None
    # The formula only knows the weights: on a large enough card of the same kind it is as fast.
    whole = make_plan(one_file(GEMMA, rated(cards(48)), divided.result.context_tokens))
    assert whole.speed is not None
    assert math.isclose(divided.on_gpu_tokens_per_s, whole.speed.typical, rel_tol=0.01)


def test_load_time_counts_the_weights_of_all_cards() -> None:
    machine = requested_machine(devices=("4x H100 80GB",))
    setup = VllmSetup(tensor_parallel_size=4)
    task = task_for(
        of_config("llama-3.1-8b"),
        machine,
        "vllm",
        start=Start(setup=setup, fixed_flags=frozenset({"tensor_parallel_size"})),
    )
    result = judge(task)
    assert result.load_time is not None
    assert result.load_time.size_bytes > 3 * result.estimate.weights_bytes
