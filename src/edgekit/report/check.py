"""A verdict as a headline, as one screen of text and as JSON (docs/json.md).

The headline is one sentence with the answer and the figures that decide it (SPEC A5). Every command, the page and the
Python examples show this sentence, so that they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from edgekit.bill.types import (
    Change,
    ChangeKind,
    Component,
    MemoryEstimate,
    Status,
    Usage,
    Verdict,
)
from edgekit.engines import engine_named
from edgekit.engines.choices import AS_NAMED
from edgekit.engines.commands import Command
from edgekit.engines.flags import typed
from edgekit.errors import UsageError, printable
from edgekit.machine.types import HOST, Device, Machine, together_bytes
from edgekit.machine.what_if import IDLE
from edgekit.plan.choice import FEWER_BITS, download_bytes, is_too_short, runs_on, unchecked_bytes
from edgekit.report.bill import asked_words, basis_rows, bill_json
from edgekit.report.hardware import budget_json, machine_json
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.speed import (
    rate_words,
    shortfall_words,
    speed_json,
    speed_row,
    speed_rows,
    wait_rows,
    waits_json,
)
from edgekit.report.text import (
    FROM_INDEX,
    PLAIN,
    Screen,
    Section,
    bar_lines,
    budget_names,
    command_lines,
    fullest,
    memories,
    memory_lines,
    render,
    share_words,
    sizes_words,
)
from edgekit.units import GIB, MIB, format_download, rate_figure

if TYPE_CHECKING:
    from edgekit.app.check import Check
    from edgekit.app.fit import Fit
    from edgekit.index.types import Entry

VERDICTS = {Status.PASSED: "Fits", Status.WARNING: "Tight", Status.FAILED: "Does not fit"}
K_TOKENS = 1024
DEFAULT_CACHES = frozenset({"", "f16", "bf16", "16 bit", "auto"})
_CACHE_BITS = {
    **dict.fromkeys(("q8_0", "8 bit", "fp8"), "an 8-bit"),
    **dict.fromkeys(("q4_0", "4 bit"), "a 4-bit"),
}
FROM_ITS_NAME = "from the name alone"
_CUT = "cut to the model's context length"  # in the reason that plan/fit.py gives for a context


def headline(result: Verdict, *, from_name: bool = False) -> str:
    """The answer. `from_name`: no file was read; size and quantisation come from the name."""
    if result.failed:
        text = _fails(result)
    elif takes_a_share(result):
        text = _starts(result)
    else:  # 'Runs fully on your RTX 4090: 18.4 of 22.5 GiB at 8K, about 38 tokens/s'
        verb, speed = ("Embeds", "") if embeds(result) else ("Runs", _speed(result))
        barely = ", just" if result.warning else ""
        place = _place(result).removeprefix("fully ") if result.warning else _place(result)
        text = f"{verb} {place}{_at_weights(result)}{barely}: "
        text += f"{_used(result)} at {_window(result)}{_cache_and_limits(result)}{speed}"
        text += _shortfall(result) if embeds(result) else ""
    if from_name:
        text += f" (rough estimate {FROM_ITS_NAME})"
    elif result.doubt:
        text += f" (rough estimate: {result.doubt})"
    elif any(use.assumed for use in result.uses):
        text += " (rough estimate)"
    if result.from_index:
        text += f" ({FROM_INDEX})"
    return printable(text)


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
    if reason := rule_broken(result):
        return f"{start}: {reason}"
    cache, context = cache_words(result), _window(result)
    at_context = f" {'and' if quantization_words(result) else 'at'} {context}"
    match bool(result.asked), bool(result.cache_asked):  # "even" precedes what EdgeKit chose
        case _ if not cache:
            start += at_context
        case True, True:
            start += f"{at_context} with {cache}"
        case True, False:
            start += f"{at_context}, even with {cache}"
        case False, True:
            start += f" with {cache}, even at {context}"
        case False, False:
            start += f", even at {context} with {cache}"
    fits = 0 < result.max_context < result.context_tokens
    longest = f"; fits up to {result.max_context // result.streams:,} tokens" if fits else ""
    return f"{start}: {needs_words(result)}{longest}"


def rule_broken(result: Verdict) -> str:
    """Why it does not load, if memory is not the reason: a rule of the engine, or too short a context; else ''."""
    blocked = next((use.budget.blocked for use in result.uses if use.budget.blocked), "")
    if blocked or is_too_short(result) or all(use.fullness <= 1 for use in result.uses):
        reason = blocked or "".join(result.reasons[:1])
        return reason.partition(" does not start: ")[2] or reason
    return ""


def needs_words(result: Verdict) -> str:
    """'needs 9.0 GiB, 6.5 usable', or the rule that rejects it although enough memory is usable."""
    all_memories = memories(result)
    total_bytes = sum(memory.required_bytes for memory in all_memories)
    usable_bytes = together_bytes(use.budget for use in result.uses)
    if len(all_memories) > 1 and total_bytes > usable_bytes:
        return f"needs {_size_pair(total_bytes, usable_bytes)} usable in all"
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
    return f"fully on {cards}"


def offload_words(result: Verdict, on_gpu_tokens_per_s: float | None) -> str:
    """'the experts of 12 layers are in RAM: 24 tokens/s instead of 61 if everything fitted on the GPU'.

    '' if everything is on the GPU, or would not be faster there.
    """
    if result.speed is None or on_gpu_tokens_per_s is None or not result.way.cards:
        return ""
    here, there = rate_figure(result.speed.typical), rate_figure(on_gpu_tokens_per_s)
    if here == there or result.speed.typical > on_gpu_tokens_per_s:
        return ""
    off = engine_named(result.engine).offload(result)
    elsewhere = "on the CPU" if result.way.cards[0].unified else "in RAM"
    if off.everything:
        what = f"every layer is {elsewhere}"
    elif off.layers:
        what = f"only {off.layers} are on the GPU"
    elif off.experts:
        what = f"{off.experts} are {elsewhere}"
    else:
        what = f"the cache is {elsewhere}"
    return f"{what}: {here} tokens/s instead of {there} if everything fitted on the GPU"


def _at_weights(result: Verdict) -> str:
    """' at Q4_K_M'; '' if the user chose the file."""
    weights = quantization_words(result)
    return f" at {weights}" if weights else ""


def _window(result: Verdict) -> str:
    """'32K', '16K for each of 4 users'."""
    users = result.streams
    if users == 1 and takes_a_share(result):
        users = result.load.sequences or 1
    context = context_words(result.context_tokens // result.streams)
    return f"{context} for each of {users:,} users" if users > 1 else context


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
    """', about 38 tokens/s (31-46)'; with several users, the speed of one while the others are idle."""
    if result.speed is None:
        return ""
    has_several_users = result.streams > 1 or (result.load.sequences or 1) > 1
    suffix = " for one user at a time" if has_several_users else ""
    return f", {rate_words(result.speed.decode)}{suffix}{_shortfall(result)}"


def _shortfall(result: Verdict) -> str:
    """', slower than the 50 tokens/s you asked for'."""
    words = shortfall_words(result)
    return f", {words}" if words else ""


def _used(result: Verdict) -> str:
    """'18.4 of 22.5 GiB' of the fullest memory, or of both memories that the model is split between."""
    all_memories = memories(result)
    cards = [memory for memory in all_memories if not memory.is_ram]
    ram = [memory for memory in all_memories if memory.is_ram]
    decides = fullest(all_memories)
    if not cards or not result.way.cards:
        return sizes_words(decides.required_bytes, decides.usable_bytes)
    card = fullest(cards)
    has_ram = bool(ram) and (decides.is_ram or is_divided(result))
    words = sizes_words(card.required_bytes, card.usable_bytes) + (" VRAM" if has_ram else "")
    if len(cards) > 1:
        alike = len({memory.use.budget.name for memory in cards}) == 1
        fuller = "fuller card" if len(cards) == 2 else "fullest card"
        words += f" on the {fuller if alike else card.name}"
    if has_ram:
        words += f" and {sizes_words(ram[0].required_bytes, ram[0].usable_bytes)} RAM"
    elif result.machine.host is None and (unchecked := unchecked_bytes(result.estimate)):
        words += f" VRAM and {unchecked / GIB:,.1f} GiB of RAM, not checked (add --ram)"
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


def is_beyond(result: Verdict) -> bool:
    """Whether the context exceeds `max_context`, which is never longer than the model's native context."""
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
    if name in DEFAULT_CACHES or not result.estimate.kv_cache_bytes:
        return ""
    article = "an" if name.startswith("f") else "a"  # 'an fp8 cache', 'a q5_1 cache'
    cache = _CACHE_BITS.get(name, f"{article} {name}")
    return f"{cache} cache"


def quantization_words(result: Verdict) -> str:
    """The quantisation if EdgeKit chose it: 'Q4_K_M', '4-bit'; '' for a file that the user named."""
    chosen = result.variant is not None and bool(
        result.variant.changes or result.step == FEWER_BITS
    )
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


# -- the screen -----------------------------------------------------------------------------------

MAX_CHANGES = 3
MIN_RAM_SHARE = 0.1
ALL_FREE = "counts all of its memory as free; leave more for the system and other programs with"
LEAVE_MORE = {"--reserve 4G": (4 * GIB, None), "--max-use 80%": (None, 0.8)}
MORE = "--why: the memory breakdown, the reasons, how each figure is known"
# How the notes of an estimate start that are shown without --why: on a file of which only the first range was read, and
# on a dynamic quantisation, whose size is assumed.
_SHOWN_NOTES = ("tensors were not checked", "UD-")
# Changes in the order of their cost to the user, the cheapest first.
_CHEAPEST_FIRST = (
    ChangeKind.CONTEXT, ChangeKind.CACHE, ChangeKind.MEMORY, ChangeKind.WEIGHTS, ChangeKind.PLACEMENT,
    ChangeKind.DEVICE, ChangeKind.ENGINE,
)  # fmt: skip


def check_text(check: Check, screen: Screen = PLAIN, *, why: bool = False, more: str = MORE) -> str:
    """The screen. `why` adds the breakdown, the reasons and the notes; without it, `more` says how to get them."""
    result, bill = check.result, check.bill
    run: list[Section] = []
    if result.can_load:
        run = [("Run", lambda screen: command_lines(bill.command.strip(), screen.width))]
    if why:
        placement, machine = result.way.because, result.machine.name
        engine = bill.engine_title
        details = [placement if machine in placement else f"{machine}, {placement}"]
        speed = [] if result.speed is None else [speed_row(result.speed, embeds=embeds(result))]
        speed += [*speed_rows(result), *wait_rows(result)]
        later_rows = engine_named(result.engine).later_rows(result) if result.can_load else ()
        sections: list[Section] = [
            (None, [bill.asked]),
            ("Context", _context_rows(result)),
            ("Memory", lambda screen: memory_lines(result, screen)),
            ("Why", result.reasons),
            ("Speed", speed),
            ("Later", later_rows),
            ("To fit" if result.failed else "Or", [change.told for change in check.changes]),
            ("Basis", basis_rows(result.estimate)),
            ("Note", [*result.machine.notes, *bill.notes, *bill.estimate.notes]),
            *run,
        ]
    else:
        engine, details = result.engine, [*result_figures(result)]
        sections = [
            ("", lambda screen: bar_lines(memories(result), screen)),
            *run,
            ("Speed", speed_rows(result)),
            (
                "Note",
                [*bill.notes, *notes_on_screen(bill.estimate), *assumed_of(result.machine, result)],
            ),
            changes_section(result, check.changes),
            ("More", [more]),
        ]
    size = download_words(result, is_remote=check.is_remote)
    title = (bill.label, engine, *size, *details, asked_words(result.estimate))
    sentence = headline(result, from_name=check.is_assumed)
    return render(sentence, sections, screen, title=title, status=result.status)


def quiet_text(check: Check) -> str:
    """Only the headline."""
    return f"{headline(check.result, from_name=check.is_assumed)}\n"


def _context_rows(result: Verdict) -> Iterator[str]:
    """The context and its maximum, per user as in -c."""
    users = f" for each of {result.streams} users" if result.streams > 1 else ""
    context = result.context_tokens // result.streams
    yield f"checked at {context:,} tokens{users}: {result.window or 'as requested'}"
    longest = f"recommended {result.recommended_context // result.streams:,}"
    if not is_beyond(result):
        limits = f"max context {result.max_context // result.streams:,}, {longest}"
        longest = limits if result.max_context else "no context fits"
    native = result.native_context
    trained = f"native context {native:,}" if native else "native context unknown"
    yield f"{longest}; {trained}"


def download_words(result: Verdict, *, is_remote: bool) -> tuple[str, ...]:
    """'18.6 GB download', if the weights are not on this machine."""
    size = download_bytes(result) if is_remote else None
    return () if size is None else (f"{format_download(size)} download",)


def result_figures(result: Verdict) -> Iterator[str]:
    """Figures that the headline leaves out: the longest context, the interval of the speed."""
    if result.failed:
        return
    if result.max_context > result.context_tokens:
        per_user = " per user" if result.streams > 1 else ""
        yield f"max context {result.max_context // result.streams:,}{per_user}"


def notes_on_screen(estimate: MemoryEstimate) -> Iterator[str]:
    """The notes of an estimate that are shown without --why."""
    yield from (note for note in estimate.notes if note.startswith(_SHOWN_NOTES))


def assumed_of(machine: Machine, result: Verdict | None) -> Iterator[str]:
    """The note that a described machine counts as idle, with the flag that leaves memory to other programs."""
    if IDLE not in machine.notes:
        return
    flag = None
    if result is not None and not result.machine.is_phone:
        total_bytes = sum(use.required_bytes for use in result.uses)
        uses_ram = any(  # at least a tenth is in memory shared with the system and other programs
            use.budget.has_default_reserve and use.required_bytes >= total_bytes * MIN_RAM_SHARE
            for use in result.uses
            if HOST in use.budget.pools
        )
        if uses_ram:
            flag = _reserve_flag(result)
    yield IDLE if flag is None else f"{ALL_FREE} {flag}"


def _reserve_flag(result: Verdict) -> str | None:
    """The flag that makes the engine leave more memory free; None if it has none, or if --max-use was given."""
    for flag, limits in LEAVE_MORE.items():
        try:
            engine_named(result.engine).check_limits(*limits)
        except UsageError:
            continue
        return None if limits[1] and result.tightest.max_use else flag
    return None


def changes_section(
    result: Verdict, changes: Sequence[Change], more: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """The first few things that would change the answer."""

    def order(change: Change) -> tuple[bool, bool, int]:
        """Dropping a cache flag first, then changes that put the whole model on the GPU, even with another engine."""
        drops_flag = result.failed and result.cache_asked and change.kind is ChangeKind.CACHE
        fills_gpu = False
        if change.result is not None and change.result.way.whole:
            moves_to_gpu = change.kind is ChangeKind.ENGINE and bool(change.result.way.cards)
            fills_gpu = not result.way.whole or moves_to_gpu
        return not drops_flag, not fills_gpu, _CHEAPEST_FIRST.index(change.kind)

    rows = [*(change.told for change in sorted(changes, key=order)), *more][:MAX_CHANGES]
    return "To fit" if result.failed else "Or", rows


# -- JSON -----------------------------------------------------------------------------------------

_CONTEXT_FIELDS = (
    "status can_load context_tokens context_asked=asked context_because=window? max_context "
    "way_context=max_context recommended_context native_context quantization? cache?"
)


def check_json(check: Check) -> Json:
    """The whole answer, with the estimate that it is based on."""
    from edgekit.index import entry_with_id  # only --json needs the index
    from edgekit.index.titles import title_of

    result, bill = check.result, check.bill
    is_named = check.is_remote or bill.from_index  # a local file may have the name of another model
    entry = entry_with_id(bill.label) if is_named else None
    return {
        "schema": SCHEMA,
        **fields(bill, "model=label reference"),
        "title": title_of(entry) if entry is not None else None,
        "headline": headline(result, from_name=check.is_assumed),
        **fields(result, _CONTEXT_FIELDS),
        "download_bytes": download_bytes(result) if check.is_remote else None,
        **_parameters_json(check),
        "loss": _loss_json(check, entry),
        "step": result.step,
        "speed": speed_json(result),
        **waits_json(result),
        **fields(result, "required_bytes available_bytes"),
        "utilization": _share(result.utilization),
        "engine": {"name": result.engine, "version": bill.version or None},
        "machine": machine_json(result.machine),
        "budgets": [use_json(use) for use in result.uses],
        "bars": bars_json(result.uses, result.estimate),
        "way": result.way.because,
        **place_json(result),
        "embeds": embeds(result),
        "doubt": FROM_ITS_NAME if check.is_assumed else result.doubt or None,
        "from_index": result.from_index,
        "flags": dict(check.flags),
        "reasons": list(result.reasons),
        "changes": [change_json(change) for change in check.changes],
        "basis": result.estimate.basis.value,
        "estimate": bill_json(bill),
        "command": (bill.command or None) if result.can_load else None,
        "commands": commands_json(check.ready),
        "notes": [*result.machine.notes, *bill.notes, *bill.estimate.notes],
    }


def _parameters_json(check: Check) -> Json:
    """How many parameters the model has, and how many of them a token uses; null if only a name is known."""
    from edgekit.model.inspect import count_parameters  # only --json needs it

    geometry = check.bill.geometry
    total, active = (geometry and count_parameters(geometry)) or (None, None)
    return {"parameters": total, "active_parameters": active}


def _loss_json(check: Check, entry: Entry | None) -> Json | None:
    """Points of quality that the weights lose against those that were released; null if unknown."""
    from edgekit.index.quality import weights_loss  # only --json needs it

    quant = check.result.quantization
    if not quant or quant == AS_NAMED:
        return None
    native = "MXFP4" if entry is not None and entry.size("MXFP4_MOE") is not None else None
    loss = weights_loss(quant, native=native)
    return {
        **fields(loss, "value low high source?"),
        "basis": loss.basis.value,
    }


def place_json(result: Verdict | None) -> Json:
    """Where the model runs, as in the headline and in short; null if it does not load."""
    if result is None or not result.can_load:
        return {"place": None, "runs_on": None}
    place = _place(result)
    return {
        # "Starts on your RTX 4090": an engine that takes a fixed share never runs partly on it
        "place": place.removeprefix("fully ") if takes_a_share(result) else place,
        "runs_on": runs_on(result),
    }


def commands_json(commands: Iterable[Command]) -> list[Json]:
    """Commands, files and settings to copy, in order."""
    return [fields(command, "program name kind text notes") for command in commands]


def _share(utilization: float) -> float | None:
    """The utilisation as JSON has it: null where nothing is available and the share is infinite."""
    return utilization if math.isfinite(utilization) else None


def use_json(use: Usage) -> Json:
    return {
        **budget_json(use.budget),
        **fields(use, "required_bytes covered_bytes"),
        "utilization": _share(use.utilization),
        "status": use.status.value,
    }


def bars_json(uses: Sequence[Usage], estimate: MemoryEstimate) -> list[Json]:
    """One stacked bar per memory, for the page; the parts by component add up to the required bytes."""
    names = (
        "total_bytes", "free_bytes", "reserve_bytes", "available_bytes", "required_bytes", "utilization",
        "status", "because", "blocked",
    )  # fmt: skip
    bars = []
    for use, memory in zip(uses, budget_names(uses), strict=True):
        figures, budget = use_json(use), use.budget
        if budget.is_limited:  # memory that the GPU may not use is drawn like a reserve
            figures["reserve_bytes"] = budget.free_bytes - budget.available_bytes
            figures["because"] = budget.limit_because
        sums = dict.fromkeys(Component, 0)
        for line in estimate.lines:
            if line.reserved and line.pool in budget.pools:
                sums[line.component] += line.size_bytes
        parts = [
            {"component": component.value, "bytes": size}
            for component, size in sums.items()
            if size
        ]
        bars.append(
            {
                "memory": memory,
                **{name: figures[name] for name in names},
                "share": share_words(use) or None,
                "parts": parts,
            }
        )
    return bars


def change_json(change: Change) -> Json:
    return {
        **fields(change, "kind value told"),
        "flags": dict(change.flags),
        "max_context": change.max_context,
    }


def fit_json(fit: Fit) -> Json:
    """The answer to a change of the page's controls: this exact load, without a search."""
    result, bill = fit.result, fit.bill
    if result is None:
        sentence = f"Cannot run: {fit.refused}"
    elif fit.refused:
        sentence = f"{VERDICTS[result.status]}: {fit.refused}"
    else:
        sentence = headline(result)
    return {
        "schema": SCHEMA,
        **fields(fit, "model=label reference engine"),
        "status": (Status.FAILED if result is None else result.status).value,
        "told": sentence,
        "can_load": result is not None and result.can_load,
        **place_json(result),
        "speed": None if result is None else speed_json(result),
        **fields(fit, "context_tokens native_context"),
        "streams": 1 if result is None else result.streams,
        **fields(fit, "quantization=result.quantization cache=result.cache"),
        "bars": [] if result is None else bars_json(result.uses, result.estimate),
        "flags": typed(fit.flags),
        "estimate": None if bill is None else bill_json(bill, layers=True),
        **fields(fit, "estimate_command command? refused? refused_about? notes"),
    }
