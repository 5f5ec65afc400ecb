"""A model, flags and a machine -> one settled load against what the machine has, and what it costs as it grows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from edgekit.asking.bills import OPTIONS, Asked, bill_of
from edgekit.asking.checks import Asking, asked_question, for_model, start_commands
from edgekit.asking.words import Words, asking_of
from edgekit.bill.task import CacheChoice, Task, Variant
from edgekit.bill.verdict import Status, Verdict, Weighed
from edgekit.engines import engine_named
from edgekit.engines.flags import CONTEXT, flag_words, read_flags, typed
from edgekit.engines.variants import AS_NAMED, as_named
from edgekit.errors import EdgekitError, HardwareError, RefusedError, UsageError
from edgekit.model.open import Opened
from edgekit.plan.choice import NOTHING, Candidate
from edgekit.plan.curve import curves
from edgekit.plan.fitting import Fitting
from edgekit.plan.ladder import Ladder
from edgekit.plan.placement import first_placement
from edgekit.plan.verdict import result_for
from edgekit.report.bill_json import SCHEMA, bill_json
from edgekit.report.check_words import VERDICTS
from edgekit.report.headline import headline
from edgekit.report.plan_run import main_command
from edgekit.resolver import AUTO, CATALOG, stored_quant
from edgekit.web.bars import bars_json
from edgekit.web.machines import machine_now
from edgekit.web.types import CallWatch, reach_of

if TYPE_CHECKING:
    from edgekit.sources.types import Reach
    from edgekit.web.models import KeptNamed
    from edgekit.web.state import WebState

POINTS = 16
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """One load that is settled: its weights, and where they lie."""

    opened: Opened = field(repr=False)
    variant: Variant
    fitting: Fitting = field(repr=False)

    @property
    def question(self) -> Task:
        return self.fitting.task

    @property
    def weighed(self) -> Weighed:
        return self.fitting.price(self.fitting.asked or self.fitting.native)

    def result(self) -> Verdict:
        """The verdict on this load as it is: nothing of it is chosen here."""
        weighed, held, least = self.weighed, self.fitting, self.question.min_context
        tokens = weighed.context_tokens
        # a check that sets such a context has failed: nobody asked for it
        is_too_short = least is not None and least * held.streams == tokens > held.most
        if is_too_short:
            unasked = replace(self.question.load, context_tokens=None)
            held = Fitting(replace(self.question, load=unasked), weighed.way)
        cache = engine_named(self.question.engine).cache_name(self.question.load, weighed.way.setup)
        settled = Candidate(
            step=NOTHING if is_too_short else 1,
            variant=self.variant,
            choice=CacheChoice(name=cache, place=0, flags=""),
            ladder=Ladder(self.question, (weighed.way,)),
            held=held,
            tokens=tokens,
            because="",
        )
        return result_for(settled, max_context=tokens)


def fit(state: WebState, words: Words, named: KeptNamed, watch: CallWatch) -> Json:
    """What the engine refuses is an answer too. Raises EdgekitError for what makes no sense."""
    reach = reach_of(state.settings, watch)
    asking = asking_of(words, reach=lambda: reach, with_changes=False, machine=machine_now(words))
    engine = _engine(asking, named)
    common = {
        "schema": SCHEMA,
        "model": _label(named),
        "reference": _reference(named),
        "engine": engine,
    }
    try:
        opened, asked = named.as_file(engine), for_model(asking, named, engine)
        question, values = asked_question(opened, engine, asked, reach, named.pricing)
        load = _settled(named, opened, question)
        told = _told(load, values, named, reach, users=asking.users)
        return {**common, **told, "notes": list(named.notes)}
    except (RefusedError, HardwareError) as error:
        return {**common, **_refused(error, asking, named, engine), "notes": list(named.notes)}


def curve_answer(
    state: WebState, words: Words, named: KeptNamed, watch: CallWatch, *, points: int | None = None
) -> Json:
    """Memory against context for each way to keep the cache, all else as it was asked for."""
    reach = reach_of(state.settings, watch)
    asking = asking_of(words, reach=lambda: reach, with_changes=False, machine=machine_now(words))
    engine = _engine(asking, named)
    opened = named.as_file(engine)
    question, _ = asked_question(opened, engine, for_model(asking, named, engine), reach)
    if engine == "vllm":  # the weights that hold the shortest context there is
        least = Fitting(question, first_placement(question)).windows[-1]
        shortest = replace(question, load=replace(question.load, context_tokens=least))
        question = replace(question, model=_settled(named, opened, shortest).variant.model)
    found = curves(question, first_placement(question), points=points or POINTS)
    return {
        "schema": SCHEMA,
        "curves": [
            {
                "cache": curve.cache,
                "memory": curve.memory,
                "budget_bytes": curve.budget_bytes,
                "longest": curve.longest,
                "native": curve.native,
                "points": [[point.tokens, point.required_bytes] for point in curve.points],
            }
            for curve in found
        ],
    }


def _engine(asking: Asking, named: KeptNamed) -> str:
    if len(asking.engines) > 1:
        raise UsageError("engine: choose one engine; /check compares all of them")
    return next(iter(asking.engines), None) or named.engine(AUTO, asking.machine)


def _label(named: KeptNamed) -> str:
    if named.found is not None:
        return named.found.label
    return named.entry.id if named.entry is not None else named.name


def _reference(named: KeptNamed) -> str:
    """What the command line has to be told; of the catalog, so that no file here is taken for it."""
    entry = named.entry
    if entry is not None and (named.found is None or entry.is_users):
        return f"{CATALOG}{entry.id}"
    return named.name


def _settled(named: KeptNamed, opened: Opened, question: Task) -> _Load:
    """The file as it is. Where it does not fit, vLLM loads another repository of the model that does, as in a check."""
    first = _load(opened, as_named(opened.model, _stored(opened))[0], question)
    if question.engine != "vllm" or first.weighed.fits:
        return first
    others = named.variants(opened, question.engine, question.start)[1:]
    loads = (_load(replace(opened, repository=one.reference), one, question) for one in others)
    return next((one for one in loads if one.fitting.fits(first.weighed.context_tokens)), first)


def _load(opened: Opened, variant: Variant, question: Task) -> _Load:
    asked = replace(question, model=variant.model)
    return _Load(
        opened=replace(opened, model=variant.model),
        variant=variant,
        fitting=Fitting(asked, first_placement(asked)),
    )


def _completed(fitting: Fitting, weighed: Weighed, values: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked, and all that the machine adds to it."""
    engine, way = fitting.task.engine, weighed.way
    load = fitting.load(weighed.context_tokens)
    batch = {"batch": load.batch_tokens, "ubatch": load.microbatch_tokens}
    return {
        **(batch if fitting.task.in_one_batch else {}),
        **values,
        "context": weighed.context_tokens,
        **OPTIONS[engine].settled(way.setup),
        **engine_named(engine).machine_flags(way),
    }


def _told(
    load: _Load, values: Mapping[str, Any], named: KeptNamed, reach: Reach, *, users: int | None
) -> Json:
    """The estimate is read from the flags as they are typed, so that whoever types them gets the same."""
    weighed, result, engine = load.weighed, load.result(), load.question.engine
    flags = typed(_completed(load.fitting, weighed, values))
    bill = bill_of(load.opened, engine, Asked(engine, flags), reach, named.pricing)
    command = main_command(start_commands(load.opened, result, values, users=users)) or bill.command
    refused = f"{VERDICTS[result.status]}: {weighed.refused}" if weighed.refused else ""
    return {
        "status": result.status.value,
        "told": refused or headline(result),
        "can_load": result.can_load,
        "context_tokens": weighed.context_tokens,
        "native_context": result.native_context,
        "streams": result.streams,
        "quantization": result.quantization,
        "cache": result.cache,
        "bars": bars_json(weighed.uses, weighed.estimate),
        "flags": flags,
        "estimate": bill_json(bill, layers=True),
        "estimate_command": _command(load.variant.reference or _reference(named), engine, flags),
        "command": command if result.can_load and command else None,
        "refused": weighed.refused or None,
        "refused_about": None,
    }


def _stored(opened: Opened) -> str:
    if opened.mix:
        return opened.mix
    return AS_NAMED if opened.files is None else stored_quant(opened.files)


def _refused(error: EdgekitError, asking: Asking, named: KeptNamed, engine: str) -> Json:
    """The flags as they were asked for."""
    flags = for_model(asking, named, engine).flags.get(engine, {})
    values = Asked(engine, flags).values(engine)
    native = _native(named)
    return {
        "status": Status.FAILED.value,
        "told": f"Cannot run: {error}",
        "can_load": False,
        "context_tokens": values.get("context") or native or 0,
        "native_context": native,
        "streams": 1,
        "quantization": None,
        "cache": None,
        "bars": [],
        "flags": typed(values),
        "estimate": None,
        "estimate_command": _command(_reference(named), engine, typed(values)),
        "command": None,
        "refused": str(error),
        "refused_about": error.about or None,
    }


def _native(named: KeptNamed) -> int | None:
    """Also of a model that the engine does not open."""
    if named.found is not None:
        geometry = named.found.model.geometry
        return geometry.native_context or geometry.trained_context
    return named.entry.native_context if named.entry is not None else None


def _command(reference: str, engine: str, flags: Mapping[str, str | bool]) -> str:
    table = (CONTEXT, *OPTIONS[engine].FLAGS)
    words = flag_words(table, read_flags(table, flags), ours=True)
    return shlex.join(["edgekit", "estimate", reference, "--engine", engine, *words])
