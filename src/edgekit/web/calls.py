"""The table of calls: the fields of each, and the function that answers as the command line does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from edgekit.app.candidates import complete
from edgekit.app.check import Answer, check_named
from edgekit.app.estimate import estimate_named
from edgekit.app.fit import curve, fit
from edgekit.app.inspect import inspect
from edgekit.app.ladder import ladder_named
from edgekit.app.open import file_at, quantised
from edgekit.app.plan import check_engine, plan_named
from edgekit.app.programs import InstalledProgram, installed_programs
from edgekit.app.recommend import recommend
from edgekit.app.search import Question, search
from edgekit.app.upgrades import upgrades
from edgekit.engines import every_engine
from edgekit.engines.commands import PRODUCTS
from edgekit.engines.flags import CONTEXT, QUANT, Control, Flag, Whole
from edgekit.engines.protocol import Engine
from edgekit.errors import UsageError
from edgekit.formats.types import Depth
from edgekit.index import checked_entries, most_used, read_index
from edgekit.index.completion import complete_name
from edgekit.index.filters import Filters, select
from edgekit.index.types import ModelPurpose
from edgekit.machine.types import Machine
from edgekit.report.bill import bill_json
from edgekit.report.cards import cards_json
from edgekit.report.check import fit_json
from edgekit.report.hardware import devices_json, hardware_json
from edgekit.report.index import completion_json, hub_search_json, index_json
from edgekit.report.inspection import inspection_json
from edgekit.report.json import SCHEMA
from edgekit.report.json import fields as json_fields
from edgekit.report.ladder import ladder_json
from edgekit.report.plan import plan_json
from edgekit.report.plot import curves_json
from edgekit.report.search import search_json
from edgekit.report.tables import answers_json
from edgekit.report.upgrades import upgrades_json
from edgekit.request import Request, Session
from edgekit.server.clients import ClientTurns
from edgekit.sources.hub import search_hub
from edgekit.web import requests
from edgekit.web.cards import Cards
from edgekit.web.failures import about
from edgekit.web.home import home_json
from edgekit.web.jobs import Jobs
from edgekit.web.models import CachedModel, OpenedModels
from edgekit.web.references import (
    allowed_reference,
    allowed_request,
    files_inside,
    is_file,
    may_need_network,
    needs_remote_companions,
    shown_entry,
    without_folders,
)
from edgekit.web.security import Shutdown
from edgekit.web.types import CallWatch, Json, WebSettings, reach_of

# How long a probe of this machine is reused, so that a slider does not wait for another.
MACHINE_S = 2.0
SEARCH_S = 10.0  # of a search on the hub: a person waits for it while typing
PROGRAMS_S = 60.0  # likewise for the installed programs: to ask them takes longer
# Groups of flags that the page treats alike.
_GROUPS = ("weights", "cache", "placement", "backend", "cards")

_lock = threading.Lock()
# This machine, and the monotonic time at which it was detected; at most one entry.
_machine: list[tuple[float, Machine]] = []


class WebState:
    """What all calls share: `app.state.edgekit`."""

    def __init__(self, settings: WebSettings) -> None:
        redact = partial(without_folders, settings=settings)
        self.settings = settings
        self.models = OpenedModels(settings)
        self.jobs = Jobs(timeout_s=settings.timeout_s, redact=redact)
        self.cards = Cards(settings)
        self.turns = ClientTurns()
        self.shutdown = Shutdown()
        self._programs: tuple[float, tuple[InstalledProgram, ...]] | None = None
        self._programs_lock = threading.Lock()

    def programs(self) -> tuple[InstalledProgram, ...] | None:
        """The programs on this machine; None if others can reach the server, for whom it starts nothing."""
        if not self.settings.is_loopback:
            return None
        with self._programs_lock:
            if self._programs is None or time.monotonic() - self._programs[0] > PROGRAMS_S:
                self._programs = (time.monotonic(), installed_programs())
            return self._programs[1]

    def close(self) -> None:
        """Cancel everything that runs. Idempotent."""
        self.jobs.close()
        self.cards.close()


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its fields, and the function that answers. `summary` is for the documentation."""

    request: type[requests.CallFields]
    answer: Callable[[WebState, Any, CallWatch], Json]  # Any: the fields are made from a table
    summary: str
    is_long: bool = False  # may compute for seconds: only a few at once per client


def machine_now(request: Request) -> Machine:
    """The machine described, or this one. Raises UsageError for an unknown device or an invalid size."""
    described = (request.devices, request.ram, request.vram, request.cpu)
    if request.devices or any(field is not None for field in described[1:]):
        with about("machine"):
            return _described_machine(*described)
    with _lock:
        if not _machine or time.monotonic() - _machine[0][0] > MACHINE_S:
            _machine[:] = [(time.monotonic(), Request().find_machine())]
        return _machine[0][1]


@lru_cache(maxsize=64)
def _described_machine(
    devices: tuple[str, ...], ram: str | None, vram: str | None, cpu: str | None
) -> Machine:
    return Request(devices=devices, ram=ram, vram=vram, cpu=cpu).find_machine()


def _hardware(state: WebState, fields: Any, _watch: CallWatch) -> Json:
    machine = machine_now(fields.request())
    return hardware_json(machine, None if machine.what_if else state.programs())


def _request(state: WebState, fields: Any) -> Request:
    """The request of a call, with its machine. Raises NotAllowedError for companion files that may not be opened."""
    request = allowed_request(fields.request(), state.settings)
    return replace(request, machine=machine_now(request))


def _find_model(state: WebState, fields: Any, request: Request, watch: CallWatch) -> CachedModel:
    """The model, at the quantisation in the request if there is one."""
    with about("model"):
        model = state.models.named(fields.model, watch)
    if request.quant is None:
        return model
    file = file_at(model.name, model.files, request.quant)
    return quantised(model, request.quant) if file is None else state.models.named(file, watch)


@contextmanager
def _open_model(
    state: WebState, fields: Any, request: Request, watch: CallWatch
) -> Iterator[CachedModel]:
    """The model, for a block that may fetch its companion files from other servers."""
    model = _find_model(state, fields, request, watch)
    with state.models.remote_slot(watch, is_needed=needs_remote_companions(request)):
        yield model


def _session(state: WebState, watch: CallWatch, model: CachedModel | None = None) -> Session:
    """What a call may fetch, and the model's cache of prices."""
    pricing = None if model is None else model.pricing
    return Session(reach=reach_of(state.settings, watch), pricing=pricing)


def _inspect(state: WebState, fields: Any, watch: CallWatch) -> Json:
    reference = allowed_reference(fields.model, state.settings)
    if is_file(reference):
        files_inside(reference, state.settings)
    depth = Depth.ARCHITECTURE if fields.light and not fields.tensors else Depth.TENSORS
    with state.models.remote_slot(watch, is_needed=may_need_network(reference)):
        inspection = inspect(reference, _session(state, watch), depth=depth, quant=fields.quant)
    return inspection_json(
        inspection, tensors=bool(fields.tensors), layers=bool(fields.layers), keys=bool(fields.keys)
    )


def _estimate(state: WebState, fields: Any, watch: CallWatch) -> Json:
    request = allowed_request(fields.request(), state.settings)
    with _open_model(state, fields, request, watch) as model:
        bill = estimate_named(model, request, _session(state, watch, model))
    return bill_json(bill, layers=bool(fields.per_layer))


def _check(state: WebState, fields: Any, watch: CallWatch) -> Json:
    request = _request(state, fields)
    with _open_model(state, fields, request, watch) as model:
        return answers_json(check_named(model, request, _session(state, watch)))


def first_check(state: WebState, fields: Any, watch: CallWatch) -> Answer:
    """The answer of `check`, for one engine and without what would change it. Raises UsageError for several engines."""
    request = _request(state, fields)
    if len(request.engines) > 1:
        raise UsageError("engine: a picture shows the answer of one engine: name it")
    with _open_model(state, fields, request, watch) as model:
        return check_named(model, request, _session(state, watch), with_changes=False)[0]


def _plan(state: WebState, fields: Any, watch: CallWatch) -> Json:
    request = _request(state, fields)
    check_engine(request)
    model = _find_model(state, fields, request, watch)
    # The plan may choose another file of the repository.
    is_remote = model.files is not None and model.files.origin.is_remote
    with state.models.remote_slot(watch, is_needed=is_remote):
        planned = plan_named(model, request, _session(state, watch))
    return plan_json(planned.plan, ready=planned.ready, notes=planned.notes)


def _ladder(state: WebState, fields: Any, watch: CallWatch) -> Json:
    request = _request(state, fields)
    with about("model"):
        model = state.models.named(fields.model, watch)
    # The one that a check chooses may be another file of the repository.
    is_remote = model.files is not None and model.files.origin.is_remote
    with state.models.remote_slot(watch, is_needed=is_remote or needs_remote_companions(request)):
        return ladder_json(ladder_named(model, request, _session(state, watch)))


def _recommend(state: WebState, fields: Any, watch: CallWatch) -> Json:
    return cards_json(recommend(_request(state, fields), _session(state, watch)))


def _search(state: WebState, fields: Any, watch: CallWatch) -> Json:
    question = Question.from_fields(fields.model_dump(exclude_none=True))
    return search_json(search(question, _request(state, fields), _session(state, watch)))


def _upgrades(state: WebState, fields: Any, watch: CallWatch) -> Json:
    return upgrades_json(upgrades(_request(state, fields), _session(state, watch)))


def _fit(state: WebState, fields: Any, watch: CallWatch) -> Json:
    request = _request(state, fields)
    with _open_model(state, fields, request, watch) as model:
        return fit_json(fit(model, request, _session(state, watch, model)))


def _curves(state: WebState, fields: Any, watch: CallWatch) -> Json:
    request = _request(state, fields)
    with _open_model(state, fields, request, watch) as model:
        curves = curve(model, request, _session(state, watch), points=fields.points)
    return curves_json(curves)


def _index(state: WebState, fields: Any, _: CallWatch) -> Json:
    index = read_index()
    kinds = [kind.value for kind in ModelPurpose]
    if fields.kind is not None and fields.kind not in kinds:
        raise UsageError(f"kind: {fields.kind[:40]!r} must be one of {', '.join(kinds)}")
    kind = None if fields.kind is None else ModelPurpose(fields.kind)
    filters = Filters(kind=kind, family=fields.family)
    entries = most_used(select(index.entries, filters.conditions()).entries)
    if fields.checked:
        on_page = {entry.id for entry in checked_entries(index)}
        entries = [entry for entry in entries if entry.id in on_page]
    return index_json([shown_entry(entry, state.settings) for entry in entries], index)


def home_request(fields: Any) -> Request:
    """The request of the home page, with its machine and one engine."""
    requested: Request = fields.request()
    return complete(replace(requested, machine=machine_now(requested)))


def _home(state: WebState, fields: Any, _: CallWatch) -> Json:
    deck = state.cards.deck(home_request(fields), is_limited=False)
    return home_json(state.cards.view(deck), known=len(read_index().entries))


MOST_SHOWN = 8  # names of a completion, and repositories found, unless another number is asked for


def _complete(state: WebState, fields: Any, _: CallWatch) -> Json:
    entries = complete_name(fields.q, fields.limit or MOST_SHOWN)
    return completion_json(fields.q, [shown_entry(entry, state.settings) for entry in entries])


def _hub_search(state: WebState, fields: Any, watch: CallWatch) -> Json:
    limits = reach_of(state.settings, watch)
    reach = replace(limits, total_timeout_s=min(limits.total_timeout_s, SEARCH_S))
    with state.models.remote_slot(watch, is_needed=reach.network):
        found = search_hub(fields.q, fields.limit or MOST_SHOWN, reach)
    return hub_search_json(fields.q, found)


def engines_json() -> Json:
    """All engines, in order of preference."""
    return {"schema": SCHEMA, "engines": [_engine_json(engine) for engine in every_engine()]}


def _engine_json(engine: Engine) -> Json:
    """What the page needs to know about an engine: names, KV cache types, controls, and groups of flags."""
    page, cache = engine.page, engine.page.cache
    controls = [(flag, flag.control) for flag in engine.flags if flag.control is not None]
    # The types are the default and what the control offers. An engine without a control has only the default.
    cache_types = next(
        (control.choices for flag, control in controls if flag.key in cache.keys), ()
    )
    return {
        "name": engine.name,
        **json_fields(page, "label program is_compared runs serves"),
        "programs": [
            {"name": name, "label": PRODUCTS.get(name, page.label)} for name in engine.for_programs
        ],
        "quantizes_gguf": engine.loads_gguf and bool(engine.quant_key),
        "pins_placement": engine.pins_placement,
        "verdicts": dict(page.verdicts),
        "cache": {
            "keys": cache.keys,
            "types": [
                f"{value}{cache.unit}" for value in dict.fromkeys((cache.default, *cache_types))
            ],
            "default": cache.default,
            "unit": cache.unit,
            "also": dict(cache.also),
        },
        "controls": [
            _control_json(flag, control)
            for flag, control in sorted(controls, key=lambda pair: pair[1].place)
        ],
        "groups": {
            group: list(dict.fromkeys(flag.key for flag in engine.flags if flag.group == group))
            for group in _GROUPS
        },
        "instead_of": {flag.key: flag.instead_of for flag in engine.flags if flag.instead_of},
        "flag_names": _flag_names(engine),
    }


def _flag_names(engine: Engine) -> Json:
    """How each field is written on the command line: a name before its value, or for a switch a name per value."""
    names: Json = {}
    for flag in (CONTEXT, QUANT, *engine.flags):
        if flag.names and flag.metavar:
            names.setdefault(flag.key, flag.names[0])
        elif flag.names and isinstance(names.setdefault(flag.key, {}), dict):
            names[flag.key].setdefault(str(flag.value).lower(), flag.names[0])
    return names


def _control_json(flag: Flag, control: Control) -> Json:
    """The page's control for a flag: a menu, a number or a switch, with its limits."""
    numbers = flag.read if isinstance(flag.read, Whole) else None
    kind = "menu" if control.choices else "number"
    values = {
        "key": flag.key,
        "kind": control.kind or (kind if flag.metavar else "switch"),
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
    return {key: value for key, value in values.items() if value is not None}


CALLS: dict[str, Call] = {
    "inspect": Call(requests.INSPECT, _inspect, "Describe a model from its header", is_long=True),
    "estimate": Call(
        requests.ESTIMATE,
        _estimate,
        "Estimate the memory an engine allocates, with the basis of each number",
    ),
    "check": Call(
        requests.CHECK,
        _check,
        "Check whether a model fits this machine, or another one",
        is_long=True,
    ),
    "ladder": Call(
        requests.LADDER,
        _ladder,
        "Check every quantisation of a model: size, verdict, speed, context and quality loss",
        is_long=True,
    ),
    "plan": Call(
        requests.PLAN,
        _plan,
        "Plan how to run a model: settings with reasons, and ready commands",
        is_long=True,
    ),
    "recommend": Call(
        requests.RECOMMEND,
        _recommend,
        "Recommend models for this machine, or for another one",
        is_long=True,
    ),
    "search": Call(
        requests.SEARCH,
        _search,
        "Search the index: by name, licence, size, quality, and whether models fit a machine",
        is_long=True,
    ),
    "upgrades": Call(
        requests.UPGRADES,
        _upgrades,
        "Count the models that run fully on the GPU at each size of its memory",
        is_long=True,
    ),
    "fit": Call(requests.FIT, _fit, "Check one set of settings against a machine"),
    "curves": Call(requests.CURVES, _curves, "Memory vs context, for each KV cache type"),
}

LISTS: dict[str, Call] = {
    "hardware": Call(
        requests.HARDWARE,
        _hardware,
        "Show a machine's hardware and how much memory each engine can use",
    ),
    "devices": Call(requests.DEVICES, lambda *_: devices_json(), "List the known devices"),
    "engines": Call(
        requests.ENGINES,
        lambda *_: engines_json(),
        "List the engines, their settings and the KV cache types they offer",
    ),
    "home": Call(
        requests.HOME,
        _home,
        "The best models for a task on a machine and the most used ones, with the cards made so far",
    ),
    "complete": Call(
        requests.COMPLETE, _complete, "Complete the name of a model of the index, in any spelling"
    ),
    "hub_search": Call(requests.HUB_SEARCH, _hub_search, "Search Hugging Face for models"),
    "index": Call(requests.INDEX, _index, "List the models of the index"),
    "catalog": Call(requests.INDEX, _index, "List the models of the index (the same as /index)"),
}
