"""GET /api/v1/engines: what the page must know of each engine, from its table of flags."""

from __future__ import annotations

from typing import Any

from edgekit.engines import every_engine
from edgekit.engines.flags import Control, Flag, Whole
from edgekit.engines.protocol import Engine
from edgekit.report.json import SCHEMA

_GROUPS = ("weights", "cache", "placement", "backend", "cards")  # that the page treats alike

Json = dict[str, Any]


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
