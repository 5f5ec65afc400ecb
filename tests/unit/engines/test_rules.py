"""Rules of engines: functions that are found by their name in a module of the engine's folder."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from tests.data.dummy_engine import ENGINE as DUMMY

from edgekit.engines import every_engine
from edgekit.engines.memo import ENGINE as MEMO
from edgekit.engines.protocol import Engine, Rule

ENGINES = (*every_engine(), MEMO, DUMMY)
RULES = {name: found for name, found in vars(Engine).items() if isinstance(found, Rule)}


def parameters(function: object) -> list[inspect.Parameter]:
    assert callable(function)
    return list(inspect.signature(function).parameters.values())


def generic(annotation: str) -> str:
    """The annotation with `Setup` for the engine's own type of setup, which derives from it."""
    return re.sub(r"\b\w+Setup\b", "Setup", annotation)


def mismatch(engine: Engine, name: str) -> str:
    """Why the engine's function cannot be called like the rule; "" where it can, or there is none."""
    own = getattr(engine.module(RULES[name].module), name, None)
    if own is None:
        return "missing" if RULES[name].is_needed else ""
    declared = parameters(RULES[name].default)[1:]
    result = parameters(own)
    more = result[len(declared) :]
    if len(result) < len(declared) or any(item.default is item.empty for item in more):
        return f"has {len(result)} parameters, not {len(declared)}"
    for wanted, given in zip(declared, result, strict=False):
        if wanted.name.strip("_") != given.name.strip("_"):
            return f"{given.name} should be {wanted.name}"
        if wanted.default is not wanted.empty and given.default != wanted.default:
            return f"{given.name} has another default"
        type_ = wanted.annotation
        if (
            generic(given.annotation) not in {type_, f"{type_} | None", "object"}
            and "Any" not in type_
        ):
            return f"{given.name} is {given.annotation}, not {wanted.annotation}"
    promised = inspect.signature(RULES[name].default).return_annotation
    returned = generic(inspect.signature(own).return_annotation)
    several = promised.startswith(("Iterable[", "Mapping[")) and "[" in returned
    if several or promised in {"object", returned, f"{returned} | None"} or "Any" in promised:
        return ""
    return f"returns {returned}, not {promised}"


MODULES = {
    "choices",
    "commands",
    "companions",
    "estimate",
    "setups",
    "placements",
    "speed",
}


def test_rules_are_in_the_modules_that_every_engine_shares() -> None:
    assert len(RULES) > 40
    assert {result.module for result in RULES.values()} == MODULES


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_functions_of_an_engine_take_what_the_rule_gives(engine: Engine) -> None:
    assert {name: mismatch(engine, name) for name in RULES if mismatch(engine, name)} == {}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_no_function_has_the_name_of_a_rule_of_another_module(engine: Engine) -> None:
    """It would look like the rule, and the default would count."""
    folder = Path(importlib.import_module(engine.package).__file__ or "").parent
    misplaced = [
        f"{path.stem}.{item.name}"
        for path in folder.glob("*.py")
        for item in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(item, ast.FunctionDef) and item.name in RULES
        if (engine.rules_module or RULES[item.name].module) != path.stem
    ]
    assert misplaced == []


def test_the_floor_of_an_engine_takes_what_the_bill_takes() -> None:
    with_floor = [engine for engine in ENGINES if engine.floor is not None]
    assert [engine.name for engine in with_floor] == ["llama.cpp"]
    for engine in with_floor:
        for name in ("held_bytes", "cache_bytes", "load_facts"):
            own = parameters(getattr(engine.floor, name))
            assert [item.name for item in own] == ["model", "load", "setup"]


class Empty(Engine):
    """An engine without rules."""

    name = title = "empty"
    flags = table = ()


def test_a_rule_that_is_not_there_has_its_default() -> None:
    assert Empty().quant_names() == ()
    assert Empty().placed == frozenset()
    assert Empty().floor is None


def test_a_needed_rule_that_is_not_there_says_where_it_belongs() -> None:
    wanted = rf"{Empty.__module__}.estimate has no function estimate"
    with pytest.raises(NotImplementedError, match=wanted):
        Empty().estimate  # noqa: B018 - looking it up is enough


def test_an_import_that_fails_inside_a_module_is_not_taken_for_a_missing_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_name: str) -> None:
        raise ModuleNotFoundError("no numpy", name="numpy")

    monkeypatch.setattr("edgekit.engines.protocol.import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="no numpy"):
        Empty().quant_names  # noqa: B018 - looking it up is enough
