"""Which models fit at the same time: sums, contexts, subsets, and what the others leave."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from edgekit.app.check import Check, check_named
from edgekit.app.open import open_named
from edgekit.app.together import MOST_MODELS, Together, judge_together
from edgekit.bill.types import Component, Status, Verdict
from edgekit.errors import NotFoundError, UsageError
from edgekit.machine.types import HOST
from edgekit.request import Request, Session
from edgekit.sources.types import Reach
from edgekit.units import GIB, MIB

OFFLINE = Session(reach=Reach(network=False))
PC: dict[str, Any] = {"devices": ("RTX 4090",), "ram": "64G"}
SMALL, MIDDLE, LARGE = "qwen3-8b", "phi-4", "gemma-3-27b"  # 4.7, 8.4 and 15.4 GiB of weights


def judge(names: Sequence[str], contexts: Sequence[int] = (), **machine: Any) -> Together:
    request = Request(engines=("llama.cpp",), **(machine or PC))
    return judge_together(names, request, OFFLINE, contexts=contexts)


def required(check: Check) -> int:
    return check.result.estimate.total_bytes


def test_two_models_fit_and_their_bills_add_up() -> None:
    answer = judge((SMALL, "llama-3.1-8b"))
    assert answer.all_fit
    assert [member.reference for member in answer.members] == [SMALL, "llama-3.1-8b"]
    for place, use in enumerate(answer.uses):
        total = sum(member.bytes_by_memory[place] for member in answer.members)
        assert total == use.required_bytes + use.covered_bytes
    bills = [member.check.result.estimate for member in answer.members]
    assert [sum(member.bytes_by_memory) for member in answer.members] == [
        bill.total_bytes for bill in bills
    ]


def test_every_process_has_its_own_cuda_context() -> None:
    answer = judge((SMALL, "llama-3.1-8b"))
    for member in answer.members:
        lines = member.check.result.estimate.lines
        runtime = [line for line in lines if line.component is Component.RUNTIME]
        assert any("CUDA context" in line.because for line in runtime)


def test_reserve_counts_once() -> None:
    """What two models may use is what one may use."""
    answer = judge((SMALL, "llama-3.1-8b"))
    usable = [use.budget.available_bytes for use in alone(SMALL, **PC).uses]
    assert [use.budget.available_bytes for use in answer.uses] == usable


def test_equal_contexts_are_the_longest_that_keep_all_on_the_card() -> None:
    answer = judge((SMALL, MIDDLE))
    assert answer.context_tokens is not None
    assert [member.context_tokens for member in answer.members] == [32_768, 16_384]  # phi-4: native
    assert all(member.check.result.way.whole for member in answer.members)
    longer = judge((SMALL, "llama-3.1-8b"), devices=("H100",), ram="64G")
    assert longer.status is Status.PASSED
    assert [member.context_tokens for member in longer.members] == [40_960, 131_072]
    tight = judge((SMALL, "llama-3.1-8b"), devices=("RTX 4080",), ram="64G")
    assert tight.context_tokens is not None
    assert 16_384 <= tight.context_tokens < 32_768
    step = tight.context_tokens + 4096
    above = judge((SMALL, "llama-3.1-8b"), (step, step), devices=("RTX 4080",), ram="64G")
    is_whole = [member.check.result.way.whole for member in above.members]
    assert not (above.all_fit and all(is_whole))


def test_requested_contexts_are_kept() -> None:
    assert [
        member.context_tokens for member in judge((SMALL, "llama-3.1-8b"), (8192, 40_960)).members
    ] == [8192, 40_960]
    both = judge((SMALL, "llama-3.1-8b"), (4096,))
    assert [member.context_tokens for member in both.members] == [4096, 4096]
    assert both.context_tokens is None


def test_largest_set_fits_and_of_equal_ones_the_first_named() -> None:
    answer = judge((LARGE, SMALL, MIDDLE), devices=("RTX 4090",))
    assert [member.fits_with_others for member in answer.members] == [False, True, True]
    assert answer.others[0].why_not
    assert answer.others[0].check.result.can_load  # alone
    for first, second in ((LARGE, "qwen3-32b"), ("qwen3-32b", LARGE)):
        one = judge((first, second), devices=("RTX 4090",))
        assert [member.reference for member in one.fitting] == [first]


def test_model_that_would_become_slower_than_reading_does_not_fit() -> None:
    """There is room for gemma-3-27b in 64 GiB of RAM, at about 2 tokens/s."""
    answer = judge((SMALL, LARGE))
    (other,) = answer.others
    assert "tokens/s" in other.why_not
    request = Request(engines=("llama.cpp",), min_speed=1.0, **PC)
    assert judge_together((SMALL, LARGE), request, OFFLINE).all_fit


def test_nothing_fits() -> None:
    answer = judge(("llama-3.3-70b", LARGE), devices=("RTX 3050 4GB",), ram="8G")
    assert not answer.fitting
    assert [use.required_bytes for use in answer.uses] == [0, 0]
    assert {member.why_not for member in answer.others} == {"does not fit, even alone"}


def test_shorter_context_is_proposed_if_all_would_fit() -> None:
    answer = judge((SMALL, "llama-3.1-8b"), devices=("RTX 3060",))
    assert not answer.all_fit
    assert answer.shorter_tokens in {8192, 4096, 2048}
    shorter = judge((SMALL, "llama-3.1-8b"), (answer.shorter_tokens,), devices=("RTX 3060",))
    assert shorter.all_fit


@pytest.mark.parametrize(
    "machine",
    [
        {"devices": ("RTX 3060", "RTX 3060"), "ram": "64G"},
        {"devices": ("m3-max-64",)},
        {"devices": ("m4-max-36",)},
        {"ram": "64G"},
        {"devices": ("RTX 3060", "RTX 4090"), "ram": "32G"},
    ],
    ids=["two cards", "unified", "unified, small", "CPU", "unequal cards"],
)
def test_total_fits_every_memory(machine: dict[str, Any]) -> None:
    answer = judge((SMALL, MIDDLE, "llama-3.1-8b"), **machine)
    assert answer.fitting
    for place, use in enumerate(answer.uses):
        assert use.status is not Status.FAILED
        total = sum(member.bytes_by_memory[place] for member in answer.fitting)
        assert total == use.required_bytes + use.covered_bytes


@pytest.mark.parametrize(
    ("names", "machine"),
    [
        ((SMALL, "llama-3.1-8b"), {"devices": ("RTX 4090",), "ram": "12G"}),
        ((SMALL, "llama-3.1-8b"), {"devices": ("m4-max-36",)}),
        (("qwen3-30b-a3b", "gemma-3-4b"), {"devices": ("m4-max-36",)}),
        ((SMALL, "llama-3.1-8b"), {"devices": ("RTX 3060", "RTX 4090"), "ram": "16G"}),
        ((SMALL, MIDDLE, "gemma-3-4b"), {"devices": ("Radeon 780M 32GB",)}),
    ],
    ids=["card", "Mac", "Mac, nearly full", "unequal cards", "APU"],
)
def test_prompt_caches_share_the_ram_that_is_left(
    names: tuple[str, ...], machine: dict[str, Any]
) -> None:
    """llama-server's prompt cache grows to 8 GiB: several of them must not outgrow the RAM."""
    answer = judge(names, **machine)
    assert answer.all_fit
    (ram,) = (use for use in answer.uses if HOST in use.budget.pools)
    left = ram.budget.unreserved_bytes - ram.required_bytes
    grown = 0
    for member in answer.members:
        words = shlex.split(member.check.ready[0].text)
        assert "-cram" in words
        grown += int(words[words.index("-cram") + 1]) * MIB
    assert left / 2 < grown <= left
    assert left < len(names) * 8 * GIB
    assert answer.memory.holds([member.check.result for member in answer.members])


def test_mlx_caches_share_what_the_gpu_may_use() -> None:
    request = Request(engines=("mlx",), devices=("m4-max-36",))
    answer = judge_together((SMALL, "llama-3.1-8b"), request, OFFLINE)
    assert answer.all_fit
    (memory,) = answer.uses
    assert memory.budget.is_limited
    grown = 0
    for member in answer.members:
        words = shlex.split(member.check.ready[0].text)
        cache = int(words[words.index("--prompt-cache-bytes") + 1])
        grown += cache - member.check.result.estimate.kv_cache_bytes
    left = memory.budget.available_bytes - memory.required_bytes
    assert left - 1 <= grown <= left


def alone(name: str, **request: Any) -> Verdict:
    (answer,) = check_named(open_named(name, OFFLINE), Request(**request), OFFLINE)
    assert isinstance(answer, Check)
    return answer.result


def test_caches_that_grow_count_in_every_set_of_models() -> None:
    """The two small models fit with their caches. One of them next to the large one would fit only without."""
    names = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-14b")
    answer = judge(names, (8192,), ram="12.2G")
    assert [member.fits_with_others for member in answer.members] == [True, True, False]
    first, second = (member.check.result for member in answer.fitting)
    saves = {"ram": "12.2G", "context": 8192, "flags": {"llama.cpp": {"cache_ram": 0}}}
    small, large = alone(names[0], **saves), alone(names[2], **saves)
    assert answer.memory.holds([first, second])
    assert answer.memory.holds([small, large])
    assert not answer.memory.holds([first, large])
    assert answer.most_at_once == 1


@pytest.mark.parametrize("missing_mib", [16, 48])
def test_what_fits_only_with_the_reserve_of_the_first_requests_may_be_loaded(
    missing_mib: int,
) -> None:
    """As `check` does, the models take from the reserve what only their first requests need."""
    names = (SMALL, "llama-3.1-8b")
    (card, _) = judge(names, (8192,)).uses
    request = Request(engines=("llama.cpp",), **PC)
    machine = request.find_machine()
    free = card.required_bytes + card.budget.reserve_bytes - missing_mib * MIB
    cards = (replace(machine.devices[0], free_bytes=free),)
    request = replace(request, machine=replace(machine, devices=cards))
    answer = judge_together(names, request, OFFLINE, contexts=(8192,))
    assert answer.all_fit
    assert answer.uses[0].covered_bytes == missing_mib * MIB
    assert answer.memory.holds([member.check.result for member in answer.members])
    assert answer.most_at_once == 2


def test_max_use_limits_every_set_of_models() -> None:
    """Either model takes less than half of the card, both take more."""
    names, sizes = (SMALL, "llama-3.1-8b"), {"context": 8192}
    request = Request(engines=("llama.cpp",), max_use=0.5, min_speed=50.0, **PC)
    answer = judge_together(names, request, OFFLINE, contexts=(8192,))
    results = [alone(name, **PC, **sizes) for name in names]
    assert [answer.memory.holds([result]) for result in results] == [True, True]
    assert not answer.memory.holds(results)


def test_any_two_of_three_models_fit() -> None:
    answer = judge((SMALL, "llama-3.1-8b", MIDDLE), devices=("RTX 4090",))
    assert len(answer.fitting) == 2
    sizes = sorted(sum(member.bytes_by_memory) for member in answer.members)
    usable = sum(use.budget.available_bytes for use in answer.uses)
    assert answer.most_at_once == (2 if sizes[1] + sizes[2] <= usable else 1)


def test_embedding_model_is_judged_at_its_own_context() -> None:
    answer = judge((SMALL, "nomic-embed-text-v1.5"))
    assert answer.all_fit
    assert answer.members[1].context_tokens == 2048


def test_engines_that_take_a_share_get_the_smallest_that_is_enough() -> None:
    request = Request(engines=("vllm",), devices=("H100",))
    answer = judge_together((SMALL, MIDDLE), request, OFFLINE)
    assert answer.all_fit
    shares = [float(str(member.check.flags["gpu_memory_utilization"])) for member in answer.members]
    total = answer.machine.devices[0].total_bytes
    for member, share in zip(answer.members, shares, strict=True):
        assert member.check.result.required_bytes <= share * total
        assert member.check.result.required_bytes > (share - 0.05) * total
        assert member.bytes_by_memory[0] > share * total  # and its CUDA context
    assert sum(shares) < 0.92


def test_requested_share_is_kept() -> None:
    flags = {"vllm": {"gpu_memory_utilization": 0.9}}
    request = Request(engines=("vllm",), flags=flags, devices=("H100",))
    answer = judge_together((SMALL, MIDDLE), request, OFFLINE)
    assert [member.fits_with_others for member in answer.members] == [True, False]


def test_tensor_parallel_model_takes_its_bill_of_each_card() -> None:
    request = Request(engines=("vllm",), devices=("H100", "H100"))
    answer = judge_together(("gpt-oss-120b", SMALL), request, OFFLINE)
    assert answer.all_fit
    first, second = answer.members[0].bytes_by_memory
    assert first == second > 0


@pytest.mark.parametrize(
    ("names", "contexts", "message"),
    [
        ((SMALL,), (), f"name 2 to {MOST_MODELS} models"),
        ((SMALL,) * (MOST_MODELS + 1), (), f"name 2 to {MOST_MODELS} models"),
        ((SMALL, MIDDLE), (1024, 2048, 4096), "3 contexts for 2 models"),
    ],
)
def test_wrong_numbers_are_refused(
    names: tuple[str, ...], contexts: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        judge(names, contexts)


def test_unknown_model_is_an_error() -> None:
    with pytest.raises(NotFoundError, match="no-such-model"):
        judge((SMALL, "no-such-model"))
