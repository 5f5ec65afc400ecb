"""The headline of a verdict: one sentence with the answer and the figures that decide it (SPEC A5).

Every command, the page and the Python examples show this sentence, so that they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from edgekit.bill.verdict import Speed, Status, Verdict
from edgekit.engines import engine_named
from edgekit.machine.types import Device, together_bytes
from edgekit.plan.choice import is_too_short, unchecked_bytes
from edgekit.report.bars import memories, sizes_words
from edgekit.terminal import printable
from edgekit.units import GIB, MIB

VERDICTS = {Status.PASSED: "Fits", Status.WARNING: "Tight", Status.FAILED: "Does not fit"}
K_TOKENS = 1024
MIN_TOKENS_PER_S = 0.05  # below it, "less than 0.1"
_DEFAULT_CACHES = frozenset({"", "f16", "bf16", "16 bit", "auto"})
_CACHE_BITS = {
    "q8_0": "an 8-bit",
    "8 bit": "an 8-bit",
    "fp8": "an 8-bit",
    "q4_0": "a 4-bit",
    "4 bit": "a 4-bit",
}
_CUT = "cut to the model's context length"  # written by plan/fit.py


def headline(result: Verdict, *, from_name: bool = False) -> str:
    """The answer. `from_name`: no file was read; size and quantisation come from the name."""
    if result.failed:
        text = _fails(result)
    elif takes_a_share(result):
        text = _starts(result)
    else:
        text = _runs(result)
    if from_name:
        text += " (rough estimate from the name alone)"
    elif any(use.assumed for use in result.uses):
        text += " (rough estimate)"
    return printable(text)


def _runs(result: Verdict) -> str:
    """'Runs fully on your RTX 4090: 18.4 of 22.5 GiB at 8K, about 38 tokens/s'."""
    verb = "Embeds" if embeds(result) else "Runs"
    just = ", just" if result.warning else ""
    speed = "" if embeds(result) else _speed(result)
    start = f"{verb} {_place(result)}{_at_weights(result)}{just}"
    return f"{start}: {_used(result)} at {_window(result)}{_cache_and_limits(result)}{speed}"


def _starts(result: Verdict) -> str:
    """'Starts on your RTX 4090: room for 3 requests of 32K tokens at a time, about 38 tokens/s'."""
    users = result.load.sequences or 1
    words = f"Starts on your {card_names(result.way.cards)}{_at_weights(result)}"
    words += f" for {users:,} users" if users > 1 else ""
    times = concurrency(result)
    if times is None:
        words += f": {_used(result)} at {_window(result)}"
    else:
        requests = "one request" if times < 2 else f"{int(times):,} requests"
        context = context_words(result.context_tokens).removesuffix(" tokens")
        words += f": room for {requests} of {context} tokens at a time"
    return f"{words}{_cache_and_limits(result)}{_speed(result)}"


def _fails(result: Verdict) -> str:
    """'Does not fit your RTX 3060 at 32K: needs 14.2 GiB, 11.0 usable; fits up to 8,192 tokens'."""
    verb = "Does not start on" if takes_a_share(result) else "Does not fit"
    machine = "RAM" if result.machine.name == "this machine" else result.machine.name
    start = f"{verb} your {card_names(result.way.cards) or machine}{_at_weights(result)}"
    blocked = next((use.budget.blocked for use in result.uses if use.budget.blocked), "")
    if blocked or is_too_short(result) or all(use.fullness <= 1 for use in result.uses):
        reason = blocked or "".join(result.reasons[:1])
        return f"{start}: {reason.removeprefix('vLLM does not start: ')}"
    cache, context = cache_words(result), _window(result)
    at = f" {'and' if quantization_words(result) else 'at'} {context}"
    if not cache:
        start += at
    elif result.cache_asked:
        start += f"{at} with {cache}" if result.asked else f" with {cache}, even at {context}"
    else:
        start += f"{at}, even with {cache}" if result.asked else f", even at {context} with {cache}"
    fits = 0 < result.max_context < result.context_tokens
    most = f"; fits up to {result.max_context // result.streams:,} tokens" if fits else ""
    return f"{start}: {_needs(result)}{most}"


def _needs(result: Verdict) -> str:
    """'needs 9.0 GiB, 6.5 usable', or the rule that rejects it although enough memory is usable."""
    found = memories(result)
    in_all = sum(one.required_bytes for one in found)
    usable_in_all = together_bytes(use.budget for use in result.uses)
    if len(found) > 1 and in_all > usable_in_all:
        return f"needs {_size_pair(in_all, usable_in_all)} usable in all"
    use = max(result.uses, key=lambda use: (use.fullness, use.required_bytes))
    required, usable = use.required_bytes, use.budget.available_bytes
    if required > usable:
        return f"needs {_size_pair(required, usable)} usable"
    if use.max_use is not None and required > usable * use.max_use:
        return f"needs {_size_pair(required, int(usable * use.max_use))} allowed by --max-use"
    if use.assumed:
        return f"needs about {_size_pair(required, usable)} usable, and an estimate may take 85 % of that"
    return f"may need {_size_pair(required + use.bound_bytes, use.budget.free_bytes)} free"


def _size_pair(required: int, usable: int) -> str:
    """'9.0 GiB, 6.5', in MiB below one GiB; with a second decimal if both would look the same."""
    step, unit = (GIB, "GiB") if required >= GIB else (MIB, "MiB")
    digits = 1 if round(required / step, 1) != round(usable / step, 1) else 2
    return f"{required / step:,.{digits}f} {unit}, {usable / step:,.{digits}f}"


def _place(result: Verdict) -> str:
    """'fully on your RTX 4090', 'with 40 of 81 layers on your RTX 4090', 'on the CPU'."""
    way, machine, off = result.way, result.machine, engine_named(result.engine).offload(result)
    if off.place:
        return off.place
    if not way.cards:
        return f"on your {machine.name}" if machine.is_phone else "on the CPU"
    cards = f"your {card_names(way.cards)}"
    if off.everything:
        return f"on the CPU of {cards}" if way.cards[0].unified else "on the CPU"
    elsewhere = "on the CPU" if way.cards[0].unified else "in RAM"
    if off.layers:
        experts = f", {off.experts} {elsewhere}" if off.experts else ""
        return f"with {off.layers} on {cards}{experts}"
    if off.experts:
        return f"with {off.experts} {elsewhere}"
    if off.cache:
        return f"on {cards} with the cache {elsewhere}"
    return f"on {cards}" if result.warning else f"fully on {cards}"


def _at_weights(result: Verdict) -> str:
    weights = quantization_words(result)
    return f" at {weights}" if weights else ""


def _window(result: Verdict) -> str:
    """'32K', '16K for each of 4 users'."""
    users = result.streams
    if users == 1 and takes_a_share(result):
        users = result.load.sequences or 1
    each = context_words(result.context_tokens // result.streams)
    return f"{each} for each of {users:,} users" if users > 1 else each


def _cache_and_limits(result: Verdict) -> str:
    """The cache if it is not the default, and anything unusual about the context."""
    cache, native = cache_words(result), result.native_context
    words = f" with {cache}" if cache else ""
    if _CUT in result.window:
        return f"{words} (the model's limit, shorter than the job)"
    if native and result.context_tokens // result.streams > native:
        return f"{words} (beyond the model's native {context_words(native)})"
    return words


def _speed(result: Verdict) -> str:
    """', about 38 tokens/s'; with several users, the speed of one while the others are idle."""
    if result.speed is None:
        return ""
    several = result.streams > 1 or (result.load.sequences or 1) > 1
    return f", {about_words(result.speed.decode)}{' for one user at a time' if several else ''}"


def _used(result: Verdict) -> str:
    """'18.4 of 22.5 GiB' of the fullest memory, or of both memories that the model is split between."""
    found = memories(result)
    cards, ram = [one for one in found if not one.is_ram], [one for one in found if one.is_ram]
    fullest = max(found, key=lambda one: (one.use.fullness, one.required_bytes))
    if not cards or not result.way.cards:
        return sizes_words(fullest.required_bytes, fullest.usable_bytes)
    card = max(cards, key=lambda one: (one.use.fullness, one.required_bytes))
    has_ram = bool(ram) and (fullest.is_ram or is_divided(result))
    words = sizes_words(card.required_bytes, card.usable_bytes) + (" VRAM" if has_ram else "")
    if len(cards) > 1:
        alike = len({one.use.budget.name for one in cards}) == 1
        fuller = "fuller card" if len(cards) == 2 else "fullest card"
        words += f" on the {fuller if alike else card.name}"
    if has_ram:
        words += f" and {sizes_words(ram[0].required_bytes, ram[0].usable_bytes)} RAM"
    elif unchecked_ram_bytes(result):
        words += f" VRAM and {unchecked_ram_bytes(result) / GIB:,.1f} GiB of RAM, not checked (add --ram)"
    return words


def takes_a_share(result: Verdict) -> bool:
    """Whether the engine always takes a fixed share of the card, so that it either starts or does not (SPEC A1)."""
    return any(use.budget.is_share for use in result.uses)


def embeds(result: Verdict) -> bool:
    """Whether the engine is started to return embeddings."""
    return result.way.setup.embeddings


def is_divided(result: Verdict) -> bool:
    """Whether some layers or experts are in RAM and the others on devices."""
    off = engine_named(result.engine).offload(result)
    return bool(result.way.cards) and bool(off.experts or off.layers)


def unchecked_ram_bytes(result: Verdict) -> int:
    """RAM that the placement needs, if the size of the RAM is unknown."""
    return unchecked_bytes(result.estimate) if result.machine.host is None else 0


def is_blocked(result: Verdict) -> bool:
    """Whether the engine would not start, however small the model."""
    return any(use.budget.blocked for use in result.uses)


def is_beyond(result: Verdict) -> bool:
    """Whether the context is longer than the model's native one, which `max_context` never is."""
    return result.can_load and result.context_tokens > result.max_context


def concurrency(result: Verdict) -> float | None:
    """The number of requests of this length that vLLM's pool holds at once; None if unknown."""
    facts = dict(result.estimate.facts)
    block_bytes, blocks = facts.get("bytes_per_block"), facts.get("blocks_per_group")
    if not isinstance(block_bytes, int) or not isinstance(blocks, tuple) or not sum(blocks):
        return None
    use = result.tightest
    pool = use.budget.available_bytes - use.required_bytes + result.estimate.kv_cache_bytes
    return max(0, pool // block_bytes) / sum(blocks)


def cache_words(result: Verdict) -> str:
    """'an 8-bit cache'; '' for the engine's default, and for a model without a cache."""
    name = result.cache
    if name in _DEFAULT_CACHES or not result.estimate.kv_cache_bytes:
        return ""
    article = "an" if name.startswith("f") else "a"
    return f"{_CACHE_BITS.get(name, f'{article} {name}')} cache"


def quantization_words(result: Verdict) -> str:
    """The quantisation if EdgeKit chose it: 'Q4_K_M', '4-bit'; '' for a file that the user named."""
    chosen = result.variant is not None and bool(result.variant.changes or result.step == 5)
    return result.quantization.replace(" bit", "-bit") if chosen else ""


def context_words(tokens: int) -> str:
    """'32K', '1M'; otherwise '12,345 tokens'."""
    for unit, letter in ((K_TOKENS**2, "M"), (K_TOKENS, "K")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit:,}{letter}"
    return f"{tokens:,} tokens"


def rounded_context_words(tokens: int) -> str:
    """The context rounded down to whole K: '31K'."""
    return context_words(tokens - tokens % K_TOKENS if tokens > K_TOKENS else tokens)


def card_names(cards: Iterable[Device]) -> str:
    """'RTX 4090', '2x RTX 3090', 'RTX 4090 + RTX 3060'."""
    names = [card.name for card in cards]
    return " + ".join(
        f"{names.count(name)}x {name}" if names.count(name) > 1 else name
        for name in dict.fromkeys(names)
    )


def about_words(rates: tuple[float, float]) -> str:
    """(24, 60) -> 'about 38 tokens/s': the geometric mean."""
    middle = math.sqrt(math.prod(rates))
    if middle < MIN_TOKENS_PER_S:
        return "less than 0.1 tokens/s"
    return f"about {_figure(middle)} tokens/s"


def range_words(rates: tuple[float, float]) -> str:
    """'24 to 60'; '' if both ends round to the same figure."""
    slow, fast = map(_figure, rates)
    return f"{slow} to {fast}" if slow != fast else ""


def rate_words(rates: tuple[float, float]) -> str:
    """'about 38 tokens/s (24 to 60)'."""
    between = range_words(rates)
    return f"{about_words(rates)} ({between})" if between else about_words(rates)


def typical_figure(rates: tuple[float, float]) -> str:
    """'38'."""
    return about_words(rates).removeprefix("about ").removesuffix(" tokens/s")


def _figure(rate: float) -> str:
    """Two significant digits, one below 1: '1,200', '35', '3.5', '0.4'."""
    if rate < 0.95:  # above this it rounds to 1.0, which has two digits
        return f"{rate:.1f}"
    rounded = round(rate, 1 - math.floor(math.log10(rate)))
    return f"{rounded:,.1f}" if rounded < 10 else f"{rounded:,.0f}"


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
    return f"{words}; {speed.basis.value}{f': {speed.because}' if speed.because else ''}"
