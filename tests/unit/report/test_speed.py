"""report/speed.py: a typical speed with its interval, waiting times, and a requested speed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.plan.tasks import LLAMA, gguf
from tests.unit.report.plans import experts_in_ram, one_card
from tests.unit.report.verdicts import LINES, MACHINE, check_from_lines, line

from edgekit.bill.types import (
    OWN_LAYERS,
    Component,
    Drafter,
    Load,
    Speculation,
    Speed,
    Verdict,
)
from edgekit.bill.waits import NVME_BYTES_PER_S, LoadTime, first_token, load_time
from edgekit.report.check import check_text, headline, offload_words
from edgekit.report.plan import plan_json, plan_text
from edgekit.report.speed import (
    ASK_ACCEPTANCE,
    first_token_words,
    load_words,
    rate_words,
    shared_rows,
    shortfall_words,
    speculation_rows,
    speed_json,
    speed_notes,
    speed_row,
    wait_rows,
    waits_json,
)
from edgekit.report.tables import check_table
from edgekit.units import GIB, Basis, min_speed_words

SPEED = Speed(decode=(31.0, 46.0), prefill=(1300.0, 2700.0), because="a token reads 15.40 GiB")


def verdict(**more: Any) -> Verdict:
    return check_from_lines(**{"speed": SPEED, **more}).result


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((31.0, 46.0), "about 38 tokens/s (31-46)"),
        ((3.46, 6.0), "about 4.6 tokens/s (3.5-6.0)"),
        ((0.44, 0.96), "about 0.6 tokens/s (0.4-1.0)"),
        ((0.01, 0.02), "less than 0.1 tokens/s"),
        ((9.96, 99.6), "about 31 tokens/s (10-100)"),
        ((941.0, 12_345.0), "about 3,400 tokens/s (940-12,000)"),
        ((35.1, 35.2), "about 35 tokens/s"),
    ],
)
def test_rate_words(rates: tuple[float, float], words: str) -> None:
    assert rate_words(rates) == words


@given(st.floats(0.05, 1e6), st.floats(1, 10))
def test_rate_words_round_to_at_most_two_digits(slow: float, times: float) -> None:
    numbers = re.findall(r"[\d,.]+", rate_words((slow, slow * times)))
    typical = slow * times**0.5
    assert float(numbers[0].replace(",", "")) == pytest.approx(typical, rel=0.051, abs=0.051)
    assert float(numbers[-1].replace(",", "")) == pytest.approx(
        slow * times if len(numbers) > 1 else typical, rel=0.051, abs=0.051
    )
    assert all(len(number.replace(",", "").replace(".", "").strip("0")) <= 2 for number in numbers)


def test_speed_row_says_what_is_slower_than_reading_speed() -> None:
    speed = replace(SPEED, decode=(2.0, 7.9), prefill=None, basis=Basis.ASSUMED)
    words = (
        "about 4.0 tokens/s (2.0-7.9), slower than reading speed; assumed: a token reads 15.40 GiB"
    )
    assert speed_row(speed, is_slow=True) == words
    reads = "reads about 1,900 tokens/s (1,300-2,700); modelled: a token reads 15.40 GiB"
    assert speed_row(SPEED, embeds=True) == reads
    assert speed_row(None) == "not known"


# --- waiting times


@pytest.mark.parametrize(
    ("prefill", "tokens", "words"),
    [
        ((1000.0, 4000.0), 1000, "about 0.5 s (0.2-1.0) for a prompt of 1,000 tokens"),
        ((1300.0, 2700.0), 20_000, "about 11 s (7.4-15) for a prompt of 20,000 tokens"),
        ((100.0, 100.0), 18_000, "about 3.0 minutes for a prompt of 18,000 tokens"),
        ((1.0, 1.0), 36_000, "about 10 hours for a prompt of 36,000 tokens"),
        ((10_000.0, 10_000.0), 1, "less than 0.01 s for a prompt of 1 token"),
        ((10_000.0, 10_000.0), 700, "about 0.07 s for a prompt of 700 tokens"),
    ],
)
def test_first_token_words(prefill: tuple[float, float], tokens: int, words: str) -> None:
    wait = first_token(prefill, tokens)
    assert wait is not None
    assert first_token_words(wait) == f"first word after {words}"


@pytest.mark.parametrize("prefill", [None, (0.0, 1.0), (5e-324, 1.0), (float("nan"), 1.0)])
def test_first_token_is_unknown_without_a_speed(prefill: tuple[float, float] | None) -> None:
    assert first_token(prefill, 1000) is None


def test_load_words_say_whether_the_disk_was_measured() -> None:
    assumed = load_time(4 * NVME_BYTES_PER_S, MACHINE)
    assert assumed is not None
    assert load_words(assumed) == "loads in about 4.0 s from an NVMe disk (assumed 3 GB/s)"
    measured = LoadTime(
        size_bytes=18 * 10**9, read_bytes_per_s=10**8, basis=Basis.MODELLED,
        because="measured here on 2026-11-16",
    )  # fmt: skip
    words = "loads in about 3.0 minutes from disk (0.1 GB/s, measured here on 2026-11-16)"
    assert load_words(measured) == words


def test_check_why_and_json_have_the_waits_but_the_screen_does_not() -> None:
    first, load = first_token(SPEED.prefill, 1000), load_time(9 * 10**9, MACHINE)
    check = check_from_lines(speed=SPEED, first_token=first, load_time=load)
    rows = [
        "first word after about 0.5 s (0.4-0.8) for a prompt of 1,000 tokens",
        "loads in about 3.0 s from an NVMe disk (assumed 3 GB/s)",
    ]
    assert list(wait_rows(check.result)) == rows
    assert all(row in check_text(check, why=True) for row in rows)
    assert "first word" not in check_text(check)
    document = waits_json(check.result)
    assert document["first_token_s"] == {"prompt_tokens": 1000, "typical": 0.534, "low": 0.37, "high": 0.769}  # fmt: skip
    assert document["load_s"] == {
        "typical": 3.0, "size_bytes": 9 * 10**9, "read_bytes_per_s": 3 * 10**9, "basis": "assumed",
        "because": "a usual NVMe disk",
    }  # fmt: skip


# --- a requested speed


def test_headline_says_that_it_is_slower_than_requested() -> None:
    assert not shortfall_words(verdict())
    assert not shortfall_words(verdict(min_speed=37.0))
    assert not shortfall_words(verdict(min_speed=50.0, speed=None))
    slow = verdict(min_speed=50.0)
    assert headline(slow).endswith(
        "at 32K, about 38 tokens/s (31-46), slower than the 50 tokens/s you asked for"
    )
    assert slow.passed
    # both are 'about 38'
    assert shortfall_words(verdict(min_speed=38.2)) == "slower than the 38.2 tokens/s you asked for (37.76)"  # fmt: skip
    assert "slower than the 50 tokens/s" in check_table([check_from_lines(speed=SPEED, min_speed=50.0)])  # fmt: skip


def test_speed_notes_name_the_fastest_or_say_that_the_speed_is_unknown() -> None:
    assert speed_notes(verdict(min_speed=20.0)) == []
    assert speed_notes(verdict(speed=None)) == []
    unknown = verdict(min_speed=20.0, speed=None)
    words = "not known, so it may be slower than the 20 tokens/s you asked for"
    assert speed_notes(unknown) == [words]
    assert words in check_text(check_from_lines(min_speed=20.0))
    fastest = "the fastest setting that was tried: IQ4_XS"
    assert speed_notes(verdict(min_speed=90.0, fastest=fastest)) == [fastest]


@pytest.mark.parametrize(
    ("speed", "words"), [(20.0, "20"), (7.5, "7.5"), (1e6, "1,000,000"), (0.001, "0.001")]
)
def test_min_speed_words(speed: float, words: str) -> None:
    assert min_speed_words(speed) == words


# --- what offloading costs


def test_offload_words_name_the_part_in_ram_and_both_speeds() -> None:
    result = replace(experts_in_ram().result, speed=SPEED)
    words = "the experts of 31 layers are in RAM: 38 tokens/s instead of 61 if everything fitted on the GPU"
    assert offload_words(result, 61.0) == words
    assert not offload_words(result, 38.0)
    assert not offload_words(result, 20.0)
    assert not offload_words(result, None)


def test_plan_says_what_offloading_costs() -> None:
    plan = experts_in_ram()
    assert plan.on_gpu_tokens_per_s is not None
    assert plan.speed is not None
    assert plan.on_gpu_tokens_per_s > plan.speed.typical
    for why in (False, True):
        text = " ".join(plan_text(plan, why=why).split())
        assert "the experts of 31 layers are in RAM: " in text
    document = plan_json(plan)
    assert document["on_gpu_tokens_per_s"] == round(plan.on_gpu_tokens_per_s, 2)
    assert plan_json(one_card())["on_gpu_tokens_per_s"] is None


# -- several users -------------------------------------------------------------------------------

EACH = Speed(decode=(15.0, 29.0), prefill=None, because="")
EIGHT: dict[str, Any] = {"load": Load(sequences=8), "speed_at": lambda moment: EACH}


def test_speed_row_with_several_users() -> None:
    # the geometric mean of 15 and 29 is 20.86, times 8 is 166.9
    words = "with 8 users at once about 21 tokens/s each (15-29), 170 together"
    assert [*shared_rows(verdict(**EIGHT))] == [words]
    for why in (False, True):
        assert words in " ".join(
            check_text(check_from_lines(speed=SPEED, **EIGHT), why=why).split()
        )
    assert words not in headline(verdict(**EIGHT))
    assert [*shared_rows(verdict())] == []


def test_speed_json_with_several_users() -> None:
    answer = speed_json(verdict(**EIGHT))
    assert answer is not None
    each = {"typical": 20.86, "decode": [15.0, 29.0]}
    assert answer["users"] == {"count": 8, "each": each, "together": 166.85}
    alone = speed_json(verdict())
    assert alone is not None
    assert alone["users"] is None
    assert speed_json(verdict(speed=None)) is None


# -- a draft model -------------------------------------------------------------------------------


def drafting(drafter: Drafter, decode: tuple[float, float]) -> Speculation:
    speed = Speed(decode=decode, prefill=None, because="")
    return Speculation(drafter=drafter, acceptance=0.705, draft_tokens=3, speed=speed)


def test_speed_row_with_a_draft_model() -> None:
    small, own = Drafter(name="small", model=gguf(LLAMA)), Drafter(name=OWN_LAYERS)
    (words,) = speculation_rows(verdict(speculation=drafting(small, (40.0, 90.0))))
    assert words == "with small as the draft model at 70.5 % acceptance about 60 tokens/s (40-90)"
    (words,) = speculation_rows(verdict(speculation=drafting(own, (20.0, 45.0))))
    assert words == (
        "with its own prediction layers at 70.5 % acceptance about 30 tokens/s (20-45), slower than without"
    )


def test_draft_model_without_an_acceptance_says_how_to_ask() -> None:
    drafter = line(Component.WEIGHTS, GIB, part="drafter")
    result = check_from_lines(lines=(*LINES, drafter), speed=SPEED).result
    assert [*speculation_rows(result)] == [ASK_ACCEPTANCE]
    assert [*speculation_rows(verdict())] == []
    assert [*speculation_rows(verdict(), has_drafter=True)] == [ASK_ACCEPTANCE]
    assert [*speculation_rows(verdict(speed=None), has_drafter=True)] == []


def test_speed_json_with_a_draft_model() -> None:
    drafter = Drafter(name="small", model=gguf(LLAMA))
    answer = speed_json(verdict(speculation=drafting(drafter, (40.0, 90.0))))
    assert answer is not None
    assert answer["speculative"] == {
        "acceptance": 0.705, "draft_tokens": 3, "typical": 60.0, "decode": [40.0, 90.0],
    }  # fmt: skip
