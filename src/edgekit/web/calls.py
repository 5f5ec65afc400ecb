"""TABLE of the calls: what each is asked, and the command line's own answer to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from edgekit.app.check import check_named
from edgekit.app.estimate import estimate_named
from edgekit.app.fit import curve, fit
from edgekit.app.inspect import inspect
from edgekit.app.open import file_at, quantised
from edgekit.app.plan import check_engine, plan_named
from edgekit.app.recommend import recommend
from edgekit.catalog import listed, read_catalog
from edgekit.catalog.types import ModelPurpose
from edgekit.engines import every_engine
from edgekit.engines.flags import Control, Flag, Whole
from edgekit.engines.protocol import Engine
from edgekit.errors import UsageError
from edgekit.formats.types import Depth
from edgekit.machine.types import Machine
from edgekit.report.bill import bill_json
from edgekit.report.cards import cards_json
from edgekit.report.catalog import catalog_json
from edgekit.report.check import fit_json
from edgekit.report.hardware import devices_json, hardware_json
from edgekit.report.inspection import inspection_json
from edgekit.report.json import SCHEMA
from edgekit.report.plan import plan_json
from edgekit.report.plot import curves_json
from edgekit.report.tables import answers_json
from edgekit.request import Request, Session
from edgekit.web import requests
from edgekit.web.failures import about
from edgekit.web.models import CachedModel
from edgekit.web.references import (
    allowed,
    allowed_request,
    far_beside,
    files_inside,
    is_file,
    is_near,
    shown_entry,
)
from edgekit.web.state import WebState
from edgekit.web.types import CallWatch, reach_of

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: its fields, and who answers. `summary` is for the documentation."""

    request: type[requests.CallFields]
    answer: Callable[[WebState, Any, CallWatch], Json]
    summary: str
    is_long: bool = False  # it may compute for seconds: of one client a few at once


def _request(state: WebState, asked: Any) -> Request:
    """The request, with what may be opened for it; for the machine as it is now where none is described."""
    request = allowed_request(asked.request(), state.settings)
    return replace(request, machine=machine_now(request))


def _named(state: WebState, asked: Any, request: Request, watch: CallWatch) -> CachedModel:
    """The model at the quantisation that was given separately from its name."""
    with about("model"):
        named = state.models.named(asked.model, watch)
    quant = request.quant
    if quant is None:
        return named
    other = file_at(named.name, named.files, quant)
    return quantised(named, quant) if other is None else state.models.named(other, watch)


def _session(state: WebState, watch: CallWatch, named: CachedModel | None = None) -> Session:
    pricing = None if named is None else named.pricing
    return Session(reach=reach_of(state.settings, watch), pricing=pricing)


def _inspect(state: WebState, asked: Any, watch: CallWatch) -> Json:
    reference = allowed(asked.model, state.settings)
    if is_file(reference):
        files_inside(reference, state.settings)
    depth = Depth.ARCHITECTURE if asked.light and not asked.tensors else Depth.TENSORS
    with state.models.among_the_waiting(watch, far=not is_near(reference)):
        found = inspect(reference, _session(state, watch), depth=depth, quant=asked.quant)
    return inspection_json(
        found, tensors=bool(asked.tensors), layers=bool(asked.layers), keys=bool(asked.keys)
    )


def _estimate(state: WebState, asked: Any, watch: CallWatch) -> Json:
    request = allowed_request(asked.request(), state.settings)
    named = _named(state, asked, request, watch)
    with state.models.among_the_waiting(watch, far=far_beside(request)):
        bill = estimate_named(named, request, _session(state, watch, named))
    return bill_json(bill, layers=bool(asked.per_layer))


def _check(state: WebState, asked: Any, watch: CallWatch) -> Json:
    request = _request(state, asked)
    named = _named(state, asked, request, watch)
    with state.models.among_the_waiting(watch, far=far_beside(request)):
        return answers_json(check_named(named, request, _session(state, watch)))


def _plan(state: WebState, asked: Any, watch: CallWatch) -> Json:
    request = _request(state, asked)
    check_engine(request)
    named = _named(state, asked, request, watch)
    # another of its files may be chosen
    is_far = named.files is not None and named.files.origin.is_remote
    with state.models.among_the_waiting(watch, far=is_far):
        found = plan_named(named, request, _session(state, watch))
    return plan_json(found.plan, ready=found.ready, notes=found.notes)


def _recommend(state: WebState, asked: Any, watch: CallWatch) -> Json:
    return cards_json(recommend(_request(state, asked), _session(state, watch)))


def _fit(state: WebState, asked: Any, watch: CallWatch) -> Json:
    request = _request(state, asked)
    named = _named(state, asked, request, watch)
    with state.models.among_the_waiting(watch, far=far_beside(request)):
        return fit_json(fit(named, request, _session(state, watch, named)))


def _curves(state: WebState, asked: Any, watch: CallWatch) -> Json:
    request = _request(state, asked)
    named = _named(state, asked, request, watch)
    with state.models.among_the_waiting(watch, far=far_beside(request)):
        found = curve(named, request, _session(state, watch), points=asked.points)
    return curves_json(found)


def _hardware(_: WebState, asked: Any, _watch: CallWatch) -> Json:
    return hardware_json(machine_now(asked.request()))


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


_GROUPS = ("weights", "cache", "placement", "backend", "cards")  # that the page treats alike


def engines_json() -> Json:
    """All engines, in order of preference."""
    return {"schema": SCHEMA, "engines": [_engine_json(engine) for engine in every_engine()]}


def _engine_json(engine: Engine) -> Json:
    page = engine.page
    shown = [(flag, flag.control) for flag in engine.flags if flag.control is not None]
    return {
        "name": engine.name,
        "label": page.label,
        "program": page.program,
        "is_compared": page.is_compared,
        "runs": page.runs,
        "serves": page.serves,
        "quantizes_gguf": engine.loads_gguf and bool(engine.quant_key),
        "pins_placement": engine.pins_placement,
        "verdicts": dict(page.verdicts),
        "cache": {
            "keys": page.cache.keys,
            "types": [f"{value}{page.cache.unit}" for value in _cache_values(engine)],
            "default": page.cache.default,
            "unit": page.cache.unit,
            "also": dict(page.cache.also),
        },
        "controls": [_control_json(*one) for one in sorted(shown, key=lambda one: one[1].place)],
        "groups": {
            group: list(dict.fromkeys(flag.key for flag in engine.flags if flag.group == group))
            for group in _GROUPS
        },
        "instead_of": {flag.key: flag.instead_of for flag in engine.flags if flag.instead_of},
    }


def _cache_values(engine: Engine) -> dict[str, None]:
    """The default first, then what the control offers."""
    cache = engine.page.cache
    controls = (flag.control for flag in engine.flags if flag.key in cache.keys and flag.control)
    control = next(controls, None)  # None: the engine has one type of cache
    return dict.fromkeys((cache.default, *(control.choices if control is not None else ())))


def _control_json(flag: Flag, control: Control) -> Json:
    numbers = flag.read if isinstance(flag.read, Whole) else None
    found = {
        "key": flag.key,
        "kind": control.kind or _kind(flag, control),
        "label": control.label,
        "values": control.choices or None,
        "default": control.default,
        "fact": control.fact or None,
        "need": control.need or None,
        "extra": control.extra,
        "is_wide": control.is_wide,
        "least": None if numbers is None else numbers.least,
        "most": None if numbers is None else numbers.most,
    }
    return {key: value for key, value in found.items() if value is not None}


def _kind(flag: Flag, control: Control) -> str:
    if not flag.metavar:
        return "switch"
    return "menu" if control.choices else "number"


SEEN_S = 2.0  # what is free here changes; a slider that is dragged does not wait for it

_lock = threading.Lock()
_seen: list[tuple[float, Machine]] = []


def machine_now(request: Request) -> Machine:
    """The one at hand where none is named. Raises UsageError for a name or a size that means nothing."""
    if request.devices or request.ram is not None or request.vram is not None:
        with about("machine"):
            return _wished(request.devices, request.ram, request.vram)
    with _lock:
        if not _seen or time.monotonic() - _seen[0][0] > SEEN_S:
            _seen[:] = [(time.monotonic(), Request().find_machine())]
        return _seen[0][1]


@lru_cache(maxsize=64)
def _wished(devices: tuple[str, ...], ram: str | None, vram: str | None) -> Machine:
    return Request(devices=devices, ram=ram, vram=vram).find_machine()
