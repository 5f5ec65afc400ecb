"""What was said, as it was typed -> the machine, the engines with their flags, and the questions asked of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.asking.bills import (
    NOT_PLANNED,
    OPTIONS,
    Asked,
    flags_for,
    model_notes,
    quant_of,
    read_asked,
    with_one_quant,
    with_quant,
)
from edgekit.engines.flags import COMMON, CONTEXT, read, read_flags, read_number, whole
from edgekit.errors import UsageError
from edgekit.units import MIB, parse_size

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.asking.checks import Asking
    from edgekit.bill.task import Job
    from edgekit.catalog.types import ModelPurpose
    from edgekit.engines.commands import Command
    from edgekit.formats.types import Depth
    from edgekit.machine.types import Machine
    from edgekit.plan.planned import Plan
    from edgekit.plan.recommending import Ask
    from edgekit.planning import Wanted
    from edgekit.resolver import ResolvedModel
    from edgekit.sources.download import Download
    from edgekit.sources.types import Reach

ALL, AUTO, LLAMACPP = "all", "auto", "llama.cpp"
EngineFlags = dict[str, dict[str, Any]]
_OTHER_NAMES = {
    "embed": "embedding",
    "embeddings": "embedding",
    "coding": "code",
    "reason": "reasoning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Everything that may be said beside the model. What was not said is None, or empty."""

    engine: str | None = None
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # engine -> its flags
    devices: tuple[str, ...] = ()
    ram: str | None = None
    vram: str | None = None
    job: str | None = None  # "6000+800"
    min_context: str | None = None
    window_budget: str | None = None
    max_use: str | None = None  # "85%", "0.85"
    reserve: str | None = None  # "512M", "0"
    users: str | None = None
    nodes: str | None = None
    prefer_accurate_kv: bool = False
    drafter: bool = True
    task: str = "chat"

    @property
    def context(self) -> int | None:
        found: int | None = read_flags((CONTEXT,), self.given.get(COMMON, {})).get("context")
        return found

    @property
    def quant(self) -> str | None:
        """The quantisation asked for with --quant, or with another engine's flag for it."""
        return quant_of(self.given, self.named_engine)

    @property
    def named_engine(self) -> str | None:
        from edgekit.engines import engine_name

        chosen = (self.engine or AUTO).lower()
        return None if chosen in {AUTO, ALL} else engine_name(chosen)


def machine_of(words: Words) -> Machine:
    """The one at hand where none is named. Raises UsageError for a name or a size that means nothing."""
    from edgekit.machine import this_or_wished

    return this_or_wished(devices=words.devices, ram=words.ram, vram=words.vram)


def engine_flags(words: Words) -> tuple[tuple[str, ...], EngineFlags]:
    """The engines that were chosen, and the flags of each. Raises UsageError before anything is fetched."""
    given = with_one_quant(words.given, words.named_engine)
    common = given.pop(COMMON, {})
    word = AUTO if words.engine is None else words.engine.lower()
    if word == ALL:
        chosen = tuple(OPTIONS)
    elif word != AUTO or given:
        asked = read_asked(given | {COMMON: common}, engine=None if word == AUTO else word)
        chosen = (asked.engine,) if asked.engine is not None else ()
    else:
        chosen = ()
    flags = {engine: {**common, **flags_for(engine, given)} for engine in OPTIONS}
    for engine in chosen or OPTIONS:
        Asked(engine, flags[engine]).values(engine)
    if len(chosen) == 1:
        with_quant({}, chosen[0], common.get("quant"))
    return chosen, flags


def bill_flags(words: Words) -> Mapping[str, Mapping[str, Any]]:
    """The flags of a bill, with the cards and the users that it is for among those of every engine."""
    more: dict[str, Any] = {"device": words.devices, "vram": words.vram, "users": words.users}
    return {**words.given, COMMON: {**words.given.get(COMMON, {}), **more}}


def asking_of(
    words: Words,
    *,
    reach: Callable[[], Reach],
    with_changes: bool = True,
    depth: Depth | None = None,
    confirm: Callable[[Download], bool] | None = None,
    machine: Machine | None = None,
) -> Asking:
    """What `check` asks of every model. Raises UsageError."""
    from edgekit.asking.checks import Asking
    from edgekit.formats.types import Depth

    chosen, flags = engine_flags(words)
    budget = words.window_budget
    return Asking(
        machine=machine or machine_of(words),
        engines=chosen,
        flags=flags,
        quant=words.quant,
        users=read_number("--users", words.users, least=1),
        job=_job(words),
        min_context=read_number("--min-context", words.min_context),
        window_budget_bytes=None if budget is None else read("--window-budget", parse_size, budget),
        max_use=read_max_use(words.max_use),
        reserve_bytes=read_reserve(words.reserve),
        with_changes=with_changes,
        depth=depth or Depth.TENSORS,
        reach=reach,
        confirm=confirm,
    )


def planned_engine(words: Words) -> tuple[str, EngineFlags]:
    """The one engine that a plan is for, or auto. Raises UsageError before anything is fetched."""
    from edgekit.plan.making import check_planned

    chosen, flags = engine_flags(words)
    if len(chosen) > 1:
        raise UsageError(
            "plan works for one engine (--engine llama.cpp, vllm or mlx); edgekit check --engine all compares them"
        )
    for engine in chosen:
        check_planned(engine)
    return next(iter(chosen), AUTO), flags


class PlanAnswer(NamedTuple):
    """What `plan` answers."""

    plan: Plan
    ready: tuple[Command, ...]  # the commands; none where nothing fits
    notes: tuple[str, ...]


def plan_words(
    words: Words, named: ResolvedModel, *, reach: Reach, machine: Machine | None = None
) -> PlanAnswer:
    """Raises EdgekitError."""
    from edgekit.plan.commands import ready_commands
    from edgekit.planning import plan_model
    from edgekit.resolver import automatic

    chosen, flags = planned_engine(words)
    here = machine or machine_of(words)

    def ask(engine: str) -> Plan:
        return plan_model(named, wanted_of(words, named, engine, here), reach=reach)

    if chosen == AUTO:
        plan, note = automatic(named, here, ask, lambda plan: plan.result)
    else:
        plan, note = ask(chosen), ""
    engine = plan.wish.engine
    given = Asked(engine, flags[engine]).values(engine)
    ready = ready_commands(plan, files=named.files, given=given) if plan.fits else ()
    facts: dict[str, Any] = dict(plan.result.estimate.facts)
    length = facts.get("n_ctx_seq") or plan.context_tokens
    notes = (
        *([note] if note else []),
        *named.notes,
        *model_notes(named.files, plan.variant.model.geometry, length),
    )
    return PlanAnswer(plan, ready, notes)


def wanted_of(words: Words, named: ResolvedModel, engine: str, machine: Machine) -> Wanted:
    """What a plan for the engine wants of a model. Raises UsageError."""
    from dataclasses import replace

    from edgekit.bill.task import Start
    from edgekit.planning import Wanted

    _, given = planned_engine(words)
    flags = Asked(engine, with_quant(given[engine], engine, named.quant)).values(engine)
    for key, told in NOT_PLANNED.items():
        if key in flags:
            raise UsageError(f"plan does not take {told}")
    load, setup = OPTIONS[engine].ask(flags)
    if flags.pop("context", None) == 0:  # every engine: the whole native window
        load = replace(load, context_tokens=0)
    return Wanted(
        machine=machine,
        engine=engine,
        load=load,
        start=Start(setup=setup if flags else None, settled=frozenset(flags)),
        users=read_number("--users", words.users, least=1),
        job=_job(words),
        min_context=read_number("--min-context", words.min_context),
        prefer_accurate_cache=words.prefer_accurate_kv,
        drafter=words.drafter,
        nodes=read_number("--nodes", words.nodes, least=1) or 1,
        max_use=read_max_use(words.max_use),
        reserve_bytes=read_reserve(words.reserve),
    )


def ask_of(words: Words, machine: Machine | None = None) -> Ask:
    """What `recommend` is asked. Raises UsageError."""
    from edgekit.engines import engine_name, engine_named
    from edgekit.plan.making import check_planned
    from edgekit.plan.recommending import Ask

    engine = engine_name(words.engine or LLAMACPP)
    check_planned(engine)
    max_use, reserve_bytes = read_max_use(words.max_use), read_reserve(words.reserve)
    engine_named(engine).check_limits(reserve_bytes, max_use)
    return Ask(
        machine=machine or machine_of(words),
        task=task_of(words.task),
        engine=engine,
        context_tokens=words.context,
        users=read_number("--users", words.users, least=1),
        job=_job(words),
        min_context=read_number("--min-context", words.min_context),
        prefer_accurate_cache=words.prefer_accurate_kv,
        max_use=max_use,
        reserve_bytes=reserve_bytes,
    )


def read_max_use(text: str | None) -> float | None:
    """'85%' or '0.85' of the usable memory."""
    if text is None:
        return None
    text = text.strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UsageError(
            f"--max-use takes a share above 0 and up to 100%, for example 85% or 0.85 (got {text[:40]!r})"
        )
    return share


def read_reserve(text: str | None) -> int | None:
    """What is left free of every memory: '512M', '0'."""
    if text is None:
        return None
    try:
        size = 0 if text.strip() == "0" else parse_size(text)
    except UsageError:
        size = -1
    if size < MIB and size != 0:
        raise UsageError(
            f"--reserve takes a size like 512M or 2G, or 0 (got {text.strip()[:40]!r})"
        )
    return size


def task_of(word: str) -> ModelPurpose:
    from edgekit.catalog.types import ModelPurpose

    name = word.lower()
    try:
        return ModelPurpose(_OTHER_NAMES.get(name, name))
    except ValueError as error:
        known = ", ".join(
            "embed" if kind is ModelPurpose.EMBEDDING else kind.value for kind in ModelPurpose
        )
        raise UsageError(f"--task must be one of {known} (got {word[:40]!r})") from error


def _job(words: Words) -> Job | None:
    text = words.job
    if text is None:
        return None
    from edgekit.bill.task import Job

    if words.context is not None:
        raise UsageError("give a context or a job, not both: the job sets the context")

    prompt, plus, new = text.partition("+")
    if not plus:
        raise UsageError(
            f"--job takes prompt tokens + new tokens, for example 6000+800 (got {text[:40]!r})"
        )
    return Job(prompt_tokens=read("--job", whole(), prompt), new_tokens=read("--job", whole(), new))
