"""Speeds and waiting times in words and as JSON: a typical value with its 80 % interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from edgekit.bill.types import OWN_LAYERS, SPEED_INTERVAL, Speed, Verdict
from edgekit.bill.waits import FirstToken, LoadTime
from edgekit.plan.throughput import shared_speed
from edgekit.report.hardware import gigabytes
from edgekit.report.json import Json, fields
from edgekit.units import Basis, about_rate, min_speed_words, rate_figure, two_digits


def rate_words(rates: tuple[float, float]) -> str:
    """(31, 46) -> 'about 38 tokens/s (31-46)'."""
    words, interval = about_rate(math.sqrt(math.prod(rates))), interval_words(rates)
    return f"{words} ({interval})" if interval else words


def interval_words(ends: tuple[float, float]) -> str:
    """'31-46'; '' if both ends round to the same figure."""
    low, high = map(two_digits, ends)
    return f"{low}-{high}" if low != high else ""


def shortfall_words(result: Verdict) -> str:
    """'slower than the 20 tokens/s you asked for'; '' if it is fast enough, or its speed is unknown."""
    if not result.is_too_slow or result.min_speed is None or result.typical_speed is None:
        return ""
    words = f"slower than the {min_speed_words(result.min_speed)} tokens/s you asked for"
    figure = rate_figure(result.typical_speed)
    if figure == rate_figure(result.min_speed):  # both are rounded to 'about 20'
        words += f" ({result.typical_speed:.4g})"
    return words


def speed_notes(result: Verdict) -> list[str]:
    """What a requested speed adds: the fastest setting if none is as fast, or that the speed is unknown."""
    if result.fastest:
        return [result.fastest]
    if result.can_load and result.min_speed is not None and result.typical_speed is None:
        wanted = min_speed_words(result.min_speed)
        return [f"not known, so it may be slower than the {wanted} tokens/s you asked for"]
    return []


def speed_row(speed: Speed | None, *, embeds: bool = False, is_slow: bool = False) -> str:
    """Decoding and prompt speed, and their basis."""
    if speed is None:
        return "not known"
    prompts = "" if speed.prefill is None else rate_words(speed.prefill)
    if embeds:
        return f"reads {prompts or 'at an unknown speed'}; {speed.basis.value}: {speed.because}"
    words = rate_words(speed.decode)
    words += ", slower than reading speed" if is_slow else ""
    words += f"; prompts {prompts}" if prompts else ""
    reason = f": {speed.because}" if speed.because else ""
    return f"{words}; {speed.basis.value}{reason}"


def shared_rows(result: Verdict) -> Iterator[str]:
    """'with 8 users at once about 21 tokens/s each (15-29), 170 together', if several were requested."""
    shared = shared_speed(result)
    if shared is not None:
        each, interval = about_rate(shared.each.typical), interval_words(shared.each.decode)
        ends = f" ({interval})" if interval else ""
        together = rate_figure(shared.together)
        yield f"with {shared.users:,} users at once {each} each{ends}, {together} together"


ASK_ACCEPTANCE = (
    "how much faster the draft model makes it depends on how many of its tokens are accepted: "
    "--acceptance 70% shows the speed if 70 % are"
)
_DRAFTING = frozenset({"drafter", "prediction"})  # parts of a bill


def speculation_rows(result: Verdict, *, has_drafter: bool | None = None) -> Iterator[str]:
    """'with the draft model at 70 % acceptance about 51 tokens/s (32-81)'; how to ask, if no acceptance was stated.

    `has_drafter`: whether there is a draft model; None: if it is in the bill.
    """
    if result.speed is None or not result.can_load:
        return
    if has_drafter is None:
        has_drafter = any(line.part in _DRAFTING for line in result.estimate.lines)
    drafting = result.speculation
    if drafting is not None:
        drafter = OWN_LAYERS
        if drafting.drafter.model is not None:
            drafter = f"{drafting.drafter.name} as the draft model"
        slower = drafting.speed.typical < result.speed.typical
        words = f"with {drafter} at {100 * drafting.acceptance:.3g} % acceptance "
        yield (
            words + rate_words(drafting.speed.decode) + (", slower than without" if slower else "")
        )
    elif has_drafter:
        yield ASK_ACCEPTANCE


def speed_rows(result: Verdict, drafting: Iterable[str] | None = None) -> list[str]:
    """What is said besides the speed: several users, a draft model (`drafting`), a requested speed."""
    drafting = speculation_rows(result) if drafting is None else drafting
    return [*shared_rows(result), *drafting, *speed_notes(result)]


def wait_rows(result: Verdict) -> Iterator[str]:
    """The time until the first token of an answer, and the time to load the weights."""
    if result.can_load and result.first_token is not None:
        yield first_token_words(result.first_token)
    if result.can_load and result.load_time is not None:
        yield load_words(result.load_time)


def first_token_words(wait: FirstToken) -> str:
    """'first word after about 0.6 s (0.4-0.9) for a prompt of 1,000 tokens'."""
    prompt = "1 token" if wait.prompt_tokens == 1 else f"{wait.prompt_tokens:,} tokens"
    return f"first word after {seconds_words(wait.typical_s, wait.low_s, wait.high_s)} for a prompt of {prompt}"


def seconds_words(typical_s: float, low_s: float, high_s: float) -> str:
    """'about 0.6 s (0.4-0.9)', 'about 3.5 minutes', 'less than 0.01 s'."""
    if typical_s < MIN_SECONDS:
        return f"less than {MIN_SECONDS:g} s"
    step, unit = next((row for row in _TIMES if typical_s >= 2 * row[0]), (1, "s"))
    typical, low, high = (_time_figure(seconds / step) for seconds in (typical_s, low_s, high_s))
    interval = f" ({low}-{high})" if low != high else ""
    return f"about {typical} {unit}{interval}"


def _time_figure(time: float) -> str:
    """Two significant digits, one below 1: '35', '3.5', '0.07'."""
    return f"{time:.1g}" if time < 0.95 else two_digits(time)


MIN_SECONDS = 0.01
_TIMES = ((3600, "hours"), (60, "minutes"))


def load_words(load: LoadTime) -> str:
    """'loads in about 4 s from an NVMe disk (assumed 3 GB/s)'."""
    time, rate = seconds_words(*[load.seconds] * 3), gigabytes(load.read_bytes_per_s)
    if load.basis is Basis.ASSUMED:
        return f"loads in {time} from an NVMe disk (assumed {rate})"
    return f"loads in {time} from disk ({rate}, {load.because})"


def speed_json(result: Verdict) -> Json | None:
    """Tokens per second: typical values, and their 80 % intervals."""
    speed, shared, drafting = result.speed, shared_speed(result), result.speculation
    if speed is None:
        return None
    prefill, typical_prefill = speed.prefill, speed.typical_prefill
    users: Json | None = None
    if shared is not None:
        together = round(shared.together, 2)
        users = {"count": shared.users, "each": _decode_json(shared.each), "together": together}
    return {
        **_decode_json(speed),
        "prefill": None if prefill is None else [round(rate, 2) for rate in prefill],
        "prefill_typical": None if typical_prefill is None else round(typical_prefill, 2),
        "interval": SPEED_INTERVAL,
        **fields(speed, "basis because"),
        "users": users,
        "speculative": None
        if drafting is None
        else {
            **fields(drafting, "acceptance draft_tokens"),
            **_decode_json(drafting.speed),
        },
    }


def _decode_json(speed: Speed) -> Json:
    return {
        "typical": round(speed.typical, 2),
        "decode": [round(rate, 2) for rate in speed.decode],
    }


def waits_json(result: Verdict) -> Json:
    """The fields on waiting times and on a requested speed."""
    first, load = result.first_token, result.load_time
    first_s: Json | None = None
    if result.can_load and first is not None:
        first_s = {
            "prompt_tokens": first.prompt_tokens,
            "typical": round(first.typical_s, 3),
            "low": round(first.low_s, 3),
            "high": round(first.high_s, 3),
        }
    load_s: Json | None = None
    if result.can_load and load is not None:
        load_s = {
            "typical": round(load.seconds, 3),
            "size_bytes": load.size_bytes,
            "read_bytes_per_s": load.read_bytes_per_s,
            "basis": load.basis.value,
            "because": load.because or "a usual NVMe disk",
        }
    return {
        "first_token_s": first_s,
        "load_s": load_s,
        "min_speed": result.min_speed,
        "is_fast_enough": result.is_fast_enough,
        "fastest": result.fastest or None,
    }
