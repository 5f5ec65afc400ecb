"""TABLE of the calls: what each is asked, and the command line's own answer to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgekit.asking.bills import bill_named, read_asked
from edgekit.asking.checks import answers_json, check_named
from edgekit.asking.known import listed, recommend_words
from edgekit.asking.words import (
    Words,
    asking_of,
    bill_flags,
    engine_flags,
    plan_words,
    planned_engine,
)
from edgekit.catalog import read_catalog
from edgekit.catalog.types import ModelPurpose
from edgekit.errors import UsageError
from edgekit.formats.types import Depth
from edgekit.report.as_json import inspection_json
from edgekit.report.bill_json import bill_json
from edgekit.report.cards_json import cards_json
from edgekit.report.catalog_json import catalog_json
from edgekit.report.hardware_json import devices_json, hardware_json
from edgekit.report.plan_json import plan_json
from edgekit.resolver import file_at, inspect_named, quantised
from edgekit.web import requests
from edgekit.web.engines import engines_json
from edgekit.web.failures import about
from edgekit.web.fit import curve_answer, fit
from edgekit.web.machines import machine_now
from edgekit.web.references import (
    allowed,
    allowed_words,
    far_beside,
    files_inside,
    is_file,
    is_near,
    shown_entry,
)
from edgekit.web.types import CallWatch, reach_of

if TYPE_CHECKING:
    from edgekit.web.models import KeptNamed
    from edgekit.web.state import WebState

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: its fields, and who answers. `summary` is for the documentation."""

    request: type[requests.CallFields]
    answer: Callable[[WebState, Any, CallWatch], Json]
    summary: str
    is_long: bool = False  # it may compute for seconds: of one client a few at once


def _named(state: WebState, asked: Any, words: Words, watch: CallWatch) -> KeptNamed:
    """The model at the quantisation that was given separately from its name."""
    with about("model"):
        named = state.models.named(asked.model, watch)
    quant = words.quant
    if quant is None:
        return named
    other = file_at(named, quant)
    return quantised(named, quant) if other is None else state.models.named(other, watch)


def _inspect(state: WebState, asked: Any, watch: CallWatch) -> Json:
    reference = allowed(asked.model, state.settings)
    if is_file(reference):
        files_inside(reference, state.settings)
    depth = Depth.ARCHITECTURE if asked.light and not asked.tensors else Depth.TENSORS
    with state.models.among_the_waiting(watch, far=not is_near(reference)):
        found = inspect_named(
            reference, depth=depth, reach=reach_of(state.settings, watch), quant=asked.quant
        )
    return inspection_json(
        found, tensors=bool(asked.tensors), layers=bool(asked.layers), keys=bool(asked.keys)
    )


def _estimate(state: WebState, asked: Any, watch: CallWatch) -> Json:
    words = allowed_words(asked.words(), state.settings)
    flags = read_asked(bill_flags(words), engine=words.engine)
    named = _named(state, asked, words, watch)
    with state.models.among_the_waiting(watch, far=far_beside(words)):
        bill = bill_named(named, flags, reach_of(state.settings, watch), named.pricing)
    return bill_json(bill, layers=bool(asked.per_layer))


def _check(state: WebState, asked: Any, watch: CallWatch) -> Json:
    words = allowed_words(asked.words(), state.settings)
    engine_flags(words)  # what cannot be read is told before anything is fetched
    reach = reach_of(state.settings, watch)
    named = _named(state, asked, words, watch)
    asking = asking_of(words, reach=lambda: reach, machine=machine_now(words))
    with state.models.among_the_waiting(watch, far=far_beside(words)):
        return answers_json(check_named(named, asking, reach))


def _plan(state: WebState, asked: Any, watch: CallWatch) -> Json:
    words = allowed_words(asked.words(), state.settings)
    planned_engine(words)
    named = _named(state, asked, words, watch)
    is_far = (
        named.files is not None and named.files.origin.is_remote
    )  # another of its files may be chosen
    with state.models.among_the_waiting(watch, far=is_far):
        plan, ready, notes = plan_words(
            words, named, reach=reach_of(state.settings, watch), machine=machine_now(words)
        )
    return plan_json(plan, ready=ready, notes=notes)


def _recommend(_: WebState, asked: Any, watch: CallWatch) -> Json:
    words = asked.words()

    def tell(line: str) -> None:
        watch.check()
        if watch.progress is not None:
            watch.progress(line)

    best = recommend_words(
        words,
        limit=asked.limit,
        all_sizes=bool(asked.all_sizes),
        machine=machine_now(words),
        tell=tell,
    )
    return cards_json(best.found, problems=best.notes)


def _fit(state: WebState, asked: Any, watch: CallWatch) -> Json:
    words = allowed_words(asked.words(), state.settings)
    engine_flags(words)
    named = _named(state, asked, words, watch)
    with state.models.among_the_waiting(watch, far=far_beside(words)):
        return fit(state, words, named, watch)


def _curves(state: WebState, asked: Any, watch: CallWatch) -> Json:
    words = allowed_words(asked.words(), state.settings)
    engine_flags(words)
    named = _named(state, asked, words, watch)
    with state.models.among_the_waiting(watch, far=far_beside(words)):
        return curve_answer(state, words, named, watch, points=asked.points)


def _hardware(_: WebState, asked: Any, _watch: CallWatch) -> Json:
    return hardware_json(machine_now(asked.words()))


def _devices(_: WebState, _asked: Any, _watch: CallWatch) -> Json:
    return devices_json()


def _catalog(state: WebState, asked: Any, _watch: CallWatch) -> Json:
    known = read_catalog()
    kinds = [kind.value for kind in ModelPurpose]
    if asked.kind is not None and asked.kind not in kinds:
        raise UsageError(f"kind: {asked.kind[:40]!r} must be one of {', '.join(kinds)}")
    found = listed(known, kind=asked.kind, family=asked.family)
    return catalog_json([shown_entry(one, state.settings) for one in found], known)


CALLS: dict[str, Call] = {
    "inspect": Call(
        request=requests.INSPECT,
        answer=_inspect,
        summary="Describe a model from its header",
        is_long=True,
    ),
    "estimate": Call(
        request=requests.ESTIMATE,
        answer=_estimate,
        summary="Estimate the memory an engine allocates, with the basis of each number",
    ),
    "check": Call(
        request=requests.CHECK,
        answer=_check,
        summary="Check whether a model fits this machine, or another one",
        is_long=True,
    ),
    "plan": Call(
        request=requests.PLAN,
        answer=_plan,
        summary="Plan how to run a model: settings with reasons, and ready commands",
        is_long=True,
    ),
    "recommend": Call(
        request=requests.RECOMMEND,
        answer=_recommend,
        summary="Recommend models for this machine, or for another one",
        is_long=True,
    ),
    "fit": Call(
        request=requests.FIT,
        answer=_fit,
        summary="Check one set of settings against a machine",
    ),
    "curves": Call(
        request=requests.CURVES,
        answer=_curves,
        summary="Memory vs context, for each KV cache type",
    ),
}

LISTS: dict[str, Call] = {
    "hardware": Call(
        request=requests.HARDWARE,
        answer=_hardware,
        summary="Show a machine's hardware and how much memory each engine can use",
    ),
    "devices": Call(
        request=requests.DEVICES,
        answer=_devices,
        summary="List the known devices",
    ),
    "engines": Call(
        request=requests.ENGINES,
        answer=lambda *_: engines_json(),
        summary="List the engines, their settings and the KV cache types they offer",
    ),
    "catalog": Call(
        request=requests.CATALOG, answer=_catalog, summary="List the models of the catalog"
    ),
}
