"""Suggestions that would improve a verdict: a shorter context, another cache, smaller weights, more memory.

Each rule is a function that yields at most a few changes for a task and its verdict; the tables at the end list the
rules for models that do not fit, and for models that do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from edgekit.bill.types import (
    ASSUMED_FULL_PERCENT,
    Change,
    ChangeKind,
    Load,
    Start,
    Task,
    Usage,
    Variant,
    Verdict,
)
from edgekit.engines import default_engine, engine_named, every_engine
from edgekit.errors import EdgekitError
from edgekit.machine.devices import DeviceKind, raised_limit, usual_devices
from edgekit.machine.types import HOST, HostMemory, Machine, Vendor, together_bytes
from edgekit.machine.what_if import machine_of
from edgekit.plan.choice import (
    FEWER_BITS,
    READING_TOKENS_PER_S,
    cache_choices,
    choose,
    is_too_short,
    result_of,
    with_cache,
    with_setup,
    with_weights,
)
from edgekit.plan.fit import Fitting, placements_of
from edgekit.units import GIB, MIB, about_rate, format_bytes

SHORTER_TOKENS = (8192, 4096)  # below the minimum of 16K, and still useful
LEAST_ACCURACY = 300  # in hundredths of a bit per weight: worse weights are not offered for speed
FASTER = 1.5  # speed-up from which a shorter context is offered
WORTHWHILE = 1.25  # gain in context from which a smaller cache is offered
BEYOND_ANY_HOST_BYTES = 2**50


def changes(task: Task, result: Verdict) -> tuple[Change, ...]:
    """Changes that help on their own, the cheapest first. Changes that the engine refuses are left out."""
    if is_too_short(result):
        return ()
    rules = _TO_FIT if result.failed else _TO_IMPROVE
    return tuple(change for rule in rules for change in rule(task, result))


def _default_cache(task: Task, result: Verdict) -> Iterator[Change]:
    """The engine's default cache instead of the requested one, if the model fits with it."""
    if not result.cache_asked:
        return
    engine = engine_named(task.engine)
    default = engine.default_setup()
    changed = with_setup(task, **{name: getattr(default, name) for name in engine.cache_fields})
    load = replace(task.load, cache_k=None, cache_v=None, context_tokens=result.context_tokens)
    start = replace(changed.start, fixed_flags=changed.start.fixed_flags - {*engine.cache_fields})
    changed = replace(changed, load=load, start=start, job=None)
    verdict = _judge(changed)
    if verdict is not None and result.cache != verdict.cache == cache_choices(changed)[0].name:
        differences = _other_differences(verdict, result, changed)
        yield Change(
            kind=ChangeKind.CACHE,
            value=verdict.cache,
            told=f"without {engine.cache_flags}: fits at {_context_text(verdict)}{differences}",
            max_context=verdict.max_context,
            result=verdict,
        )


def _context(task: Task, result: Verdict) -> Iterator[Change]:
    """The longest context that fits with these weights and this cache; if none does, a short one with others."""
    lengths = [result.max_context]
    if not result.max_context:
        lengths = [tokens * result.streams for tokens in SHORTER_TOKENS]
    for tokens in lengths:
        if tokens >= result.context_tokens:
            continue
        load = replace(task.load, context_tokens=tokens)
        verdict = _judge(replace(task, load=load, job=None))
        if verdict is not None:
            each = tokens // result.streams  # -c is the context of one user
            yield Change(
                kind=ChangeKind.CONTEXT,
                value=f"{each}",
                told=f"-c {each}: fits{_other_differences(verdict, result, task)}",
                flags={"context": f"{each}"},
                max_context=tokens,
                result=verdict,
            )
            return


def _other_differences(other: Verdict, result: Verdict, task: Task) -> str:
    """How the other verdict's weights, cache and placement differ: ' with an 8-bit cache, 20 of 32 layers ...'."""
    default, *alternatives = cache_choices(task)
    text = "" if other.quantization == result.quantization else f" at {other.quantization}"
    if other.cache != default.name:
        eight_bit = {choice.name for choice in alternatives if choice.is_eight_bit}
        name = "an 8-bit" if other.cache in eight_bit else f"a {other.cache}"
        text += f" with {name} cache"
    return text if other.way.whole else f"{text}, {other.way.because}"


def _cache(task: Task, result: Verdict) -> Iterator[Change]:
    """A smaller cache type that allows a clearly longer context."""
    if result.max_context >= (result.native_context or 0) * result.streams:
        return
    flag_of_field = {flag.field or flag.key: flag.key for flag in engine_named(task.engine).flags}
    for choice in cache_choices(task)[1:]:
        if choice.name == result.cache:
            continue
        verdict = _judge(with_cache(_with_chosen_weights(task, result), choice))
        if verdict is None or verdict.max_context < result.max_context * WORTHWHILE:
            continue
        accuracy = "8-bit cache" if choice.is_eight_bit else "less accurate"
        in_load = {flag_of_field[name]: kind.name for name, kind in choice.load.items()}
        in_setup = {flag_of_field[name]: f"{value}" for name, value in choice.setup.items()}
        yield Change(
            kind=ChangeKind.CACHE,
            value=choice.name,
            told=f"{choice.flags} ({accuracy}): up to {verdict.max_context // verdict.streams:,} tokens",
            flags={**in_load, **in_setup},
            max_context=verdict.max_context,
            result=verdict,
        )
        return


def _with_chosen_weights(task: Task, result: Verdict) -> Task:
    """The task limited to the chosen weights, even if a change frees memory for better ones."""
    return task if result.variant is None else replace(task, variants=(result.variant,))


def _limit(task: Task, result: Verdict) -> Iterator[Change]:
    """A higher limit on the GPU's share of unified memory.

    Only if the model then fits, runs on the GPU or holds a longer context. Verdicts never assume a higher limit: the
    user has to raise it first.
    """
    raised = raised_limit(task.machine)
    if raised is None:
        return
    if not result.failed and result.way.whole:
        task = _with_chosen_weights(task, result)
    verdict = _judge(replace(task, machine=raised.machine))
    if verdict is None:
        return
    if result.failed:
        outcome = f"fits at {verdict.context_tokens // verdict.streams:,} tokens"
    elif verdict.way.whole and not result.way.whole:
        outcome = _gpu_text(verdict)
    elif not result.asked and verdict.max_context > result.max_context:
        outcome = f"up to {verdict.max_context // verdict.streams:,} tokens"
    else:
        return
    yield Change(
        kind=ChangeKind.MEMORY,
        value=raised.setting or raised.how,
        told=raised.sentence(outcome),
        result=verdict,
    )


def _gpu_text(verdict: Verdict) -> str:
    """'runs on the GPU at 32,768 tokens, about 20 tokens/s'."""
    where = "on the GPU" if verdict.way.whole else f"with {verdict.way.because}"
    speed = "" if verdict.speed is None else f", {about_rate(verdict.speed.typical)}"
    return f"runs {where} at {verdict.context_tokens // verdict.streams:,} tokens{speed}"


def _is_slow(result: Verdict) -> bool:
    """Whether it is slower than reading; an unknown speed does not count as slow."""
    return result.speed is not None and result.speed.typical < READING_TOKENS_PER_S


def _context_on_gpu(task: Task, result: Verdict) -> Iterator[Change]:
    """A shorter context with which the whole model is on the GPU, or with which a slow model is clearly faster."""
    if result.way.whole or not result.way.cards or result.asked:
        return
    for tokens in SHORTER_TOKENS:
        load = replace(task.load, context_tokens=tokens * result.streams)
        verdict = _judge(replace(task, load=load))
        if verdict is None:
            continue
        gain = 0.0
        if verdict.speed is not None and result.speed is not None:
            gain = verdict.speed.typical / result.speed.typical
        if verdict.way.whole or (_is_slow(result) and gain >= FASTER):
            yield Change(
                kind=ChangeKind.CONTEXT,
                value=f"{tokens}",
                told=f"-c {tokens}: {_gpu_text(verdict)}",
                flags={"context": f"{tokens}"},
                result=verdict,
            )
            return


def _weights_on_gpu(task: Task, result: Verdict) -> Iterator[Change]:
    """Less accurate weights with which a slow model is entirely on the GPU."""
    if result.way.whole or not result.way.cards or not _is_slow(result):
        return
    for variant in task.variants:
        if variant.is_good or variant.accuracy < LEAST_ACCURACY:
            continue
        verdict = _judge(replace(with_weights(task, variant), variants=(variant,)))
        if verdict is not None and verdict.way.whole:
            yield Change(
                kind=ChangeKind.WEIGHTS,
                value=variant.name,
                told=f"--quant {variant.name} (less accurate): {_gpu_text(verdict)}",
                flags=dict(variant.flags),
                max_context=verdict.max_context,
                result=verdict,
            )
            return


def _weights(task: Task, result: Verdict) -> Iterator[Change]:
    """The most accurate quantisation with which the model fits: a published one, else one that the engine can make."""
    less_accurate = [variant for variant in task.variants if not variant.is_good]
    offers: Iterable[tuple[Variant, str]] = (
        (variant, f"--quant {variant.name.replace(' ', '')}") for variant in less_accurate
    )
    if not less_accurate:
        usable_bytes = together_bytes(use.budget for use in result.uses)
        other_bytes = result.estimate.total_bytes - result.estimate.weights_bytes
        offers = engine_named(task.engine).smaller_weights(task, usable_bytes - other_bytes)
    for variant, command in offers:
        changed = with_weights(task, variant)
        if less_accurate:
            changed = replace(changed, variants=(variant,))
        verdict = _judge(changed)
        if verdict is not None:
            size = format_bytes(verdict.estimate.weights_bytes)
            yield Change(
                kind=ChangeKind.WEIGHTS,
                value=variant.name,
                told=f"{command} ({size}): fits, up to {verdict.max_context // verdict.streams:,} tokens",
                flags=dict(variant.flags),
                max_context=verdict.max_context,
                result=verdict,
            )
            return


def _unknown_ram(task: Task, _: Verdict) -> Iterator[Change]:
    """How much RAM would be enough, if a card was given without the RAM of its machine."""
    machine = task.machine
    if machine.host is not None:
        return
    host = HostMemory(total_bytes=BEYOND_ANY_HOST_BYTES, free_bytes=BEYOND_ANY_HOST_BYTES)
    verdict = _judge(replace(task, machine=replace(machine, host=host)))
    if verdict is None:
        return
    ram_use = next((use for use in verdict.uses if HOST in use.budget.pools), None)
    if ram_use is None:
        return
    needed = _free_text(ram_use)
    yield Change(
        kind=ChangeKind.PLACEMENT,
        value=verdict.way.because,
        told=f"{needed} of free RAM (--ram): fits with {verdict.way.because}",
        flags={"ram": needed.replace(" ", "").removesuffix("iB")},
        result=verdict,
    )


def _free_text(use: Usage) -> str:
    """The memory that has to be free, rounded up to 10 MiB or, with some margin, to 0.1 GiB: '13.4 GiB'."""
    needed = _free_bytes(use)
    if needed < GIB // 2:
        return f"{-(-needed // (10 * MIB)) * 10} MiB"
    return f"{math.ceil(needed * 10 / GIB + 0.5) / 10:.1f} GiB"


def _free_bytes(use: Usage) -> int:
    """How much memory has to be free: the required bytes within all limits, plus the reserve or the error bounds."""
    max_share = use.max_use or 1.0
    if use.assumed:
        max_share = min(max_share, ASSUMED_FULL_PERCENT / 100)
    usable_bytes = math.ceil(use.required_bytes / max_share)
    return usable_bytes + max(use.budget.reserve_bytes, use.bound_bytes)


def _known_ram(task: Task, result: Verdict) -> Iterator[Change]:
    """How much free RAM would be enough, if RAM is the tightest memory, and which limit applies now."""
    use, host = result.tightest, task.machine.host
    if host is None or HOST not in use.budget.pools or not engine_named(task.engine).loads_gguf:
        return
    if any(len(other.budget.pools) > 1 for other in result.uses):
        return  # on a Mac the reserve grows with the memory
    uses = [use]
    if engine_named(task.engine).streams_weights:
        # placements differ in how much of the weights is in memory: the one that needs least counts
        for placement in placements_of(task):
            fitting = Fitting(task, placement)
            tokens = -(-result.context_tokens // fitting.step_tokens) * fitting.step_tokens
            uses.append(fitting.price(tokens).uses[0])
    needed = _free_text(min(uses, key=_free_bytes))
    limit = host.tightest
    text = f"{needed} of free RAM ({format_bytes(use.budget.free_bytes)} now)"
    if limit is not None:
        text += f", limited by {limit.name}"
    yield Change(
        kind=ChangeKind.MEMORY,
        value=needed,
        told=text,
        flags={"ram": needed.replace(" ", "").removesuffix("iB")},
    )


def _engine(task: Task, _: Verdict) -> Iterator[Change]:
    """Another engine that holds the model in less memory.

    llama.cpp quantises it and splits it between GPU and RAM. For a GGUF: the engine that streams the weights from disk
    for every token, in far less memory than their size.
    """
    engine = engine_named(task.engine)
    if (task.load.sequences or 1) > 1:
        return  # several users would share this memory
    if not engine.loads_gguf:
        other = default_engine().name
        load = task.load
        outcome = "fits as a Q4_K_M GGUF, {},"
    else:
        streaming = [candidate.name for candidate in every_engine() if candidate.streams_weights]
        if engine.streams_weights or not streaming:
            return
        other = streaming[0]
        load = Load(context_tokens=task.load.context_tokens)
        outcome = "fits, but slow ({});"
    verdict = _judge(
        replace(
            task,
            engine=other,
            load=load,
            start=Start(),
            bill=None,
            companion_lines=None,
            variants=(),
        )
    )
    if verdict is not None:
        yield Change(
            kind=ChangeKind.ENGINE,
            value=other,
            told=f"--engine {other}: {outcome.format(verdict.way.because)} up to {verdict.max_context:,} tokens",
            flags={"engine": other},
            max_context=verdict.max_context,
            result=verdict,
        )


def _device(task: Task, result: Verdict) -> Iterator[Change]:
    """The smallest current GPU and the smallest current Mac that hold the whole model."""
    tokens = result.context_tokens
    engine = engine_named(task.engine)
    if task.start.fixed_flags & engine.placed or engine.streams_weights:
        return
    for kind, vendor in ((DeviceKind.GPU, Vendor.NVIDIA), (DeviceKind.MAC, Vendor.APPLE)):
        known = [
            device for device in usual_devices() if (device.kind, device.vendor) == (kind, vendor)
        ]
        known.sort(key=lambda device: device.usable_bytes)
        machines = [machine_of(device) for device in known]
        low, high = -1, len(machines)  # binary search for the smallest that is large enough
        while high - low > 1:
            middle = (low + high) // 2
            if _holds(task, machines[middle], tokens):
                high = middle
            else:
                low = middle
        if high < len(machines):
            name, what = machines[high].name, "GPU" if kind is DeviceKind.GPU else "Mac"
            text = f"{name}: the smallest current {what} that holds the whole model at {_context_text(result)}"
            yield _device_change(name, text)


def _more_cards(task: Task, result: Verdict) -> Iterator[Change]:
    """More cards of the same kind: 2, 4 or 8, as engines split models."""
    machine, engine = task.machine, engine_named(task.engine)
    cards = engine.devices(machine)
    if task.start.fixed_flags & engine.placed:
        return  # settings given for these cards may not apply to others
    if len({(card.name, card.free_bytes) for card in cards}) != 1 or cards[0].unified:
        return
    tokens = result.context_tokens
    for count in (count for count in (2, 4, 8) if count > len(cards)):
        if count * result.uses[0].budget.available_bytes < result.estimate.weights_bytes:
            continue
        several = replace(
            machine, devices=tuple(replace(cards[0], index=index) for index in range(count))
        )
        if _holds(task, several, tokens):
            name = f"{count}x {cards[0].name}"
            text = f"{name}: enough for the whole model at {_context_text(result)}"
            yield _device_change(name, text)
            return


def _context_text(result: Verdict) -> str:
    """'8,192 tokens', or '8,192 tokens for each of 4 users'."""
    text = f"{result.context_tokens // result.streams:,} tokens"
    return text if result.streams == 1 else f"{text} for each of {result.streams} users"


def _device_change(name: str, text: str) -> Change:
    return Change(kind=ChangeKind.DEVICE, value=name, told=text, flags={"device": name})


def _holds(task: Task, machine: Machine, tokens: int) -> bool:
    """Whether the machine holds the whole model without a smaller quantisation."""
    load = replace(task.load, context_tokens=tokens)
    try:
        choice = choose(replace(task, machine=machine, load=load, job=None))
    except EdgekitError:
        return False
    return choice.fits and choice.candidate.step < FEWER_BITS


def _judge(task: Task) -> Verdict | None:
    """The verdict; None if the model does not fit or the engine refuses it."""
    try:
        choice = choose(task)
        return result_of(choice) if choice.fits else None
    except EdgekitError:
        return None


ChangeRule = Callable[[Task, Verdict], Iterator[Change]]
_TO_FIT: tuple[ChangeRule, ...] = (
    _default_cache, _context, _limit, _weights, _unknown_ram, _known_ram, _engine, _more_cards, _device
)  # fmt: skip
_TO_IMPROVE: tuple[ChangeRule, ...] = (_context_on_gpu, _weights_on_gpu, _limit, _cache)
