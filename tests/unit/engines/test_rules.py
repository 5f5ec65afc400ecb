"""Rules of engines: functions that the engine finds by name in the modules of its folder, or their defaults."""

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
RULES = {name: rule for name, rule in vars(Engine).items() if isinstance(rule, Rule)}


def parameters(function: object) -> list[inspect.Parameter]:
    assert callable(function)
    return list(inspect.signature(function).parameters.values())


def generic(annotation: str) -> str:
    """The annotation with `Setup` instead of the engine's own subclass of it."""
    return re.sub(r"\b\w+Setup\b", "Setup", annotation)


def mismatch(engine: Engine, name: str) -> str:
    """Why the engine's function cannot be called like the rule; "" if it can, or if it need not exist."""
    function = getattr(engine.module(RULES[name].module), name, None)
    if function is None:
        return "missing" if RULES[name].is_needed else ""
    expected = parameters(RULES[name].default)[1:]
    actual = parameters(function)
    extra = actual[len(expected) :]
    if len(actual) < len(expected) or any(item.default is item.empty for item in extra):
        return f"has {len(actual)} parameters, not {len(expected)}"
    for wanted, given in zip(expected, actual, strict=False):
        if wanted.name.strip("_") != given.name.strip("_"):
            return f"{given.name} should be {wanted.name}"
        if wanted.default is not wanted.empty and given.default != wanted.default:
            return f"{given.name} has another default"
        type_ = wanted.annotation
        accepted = {type_, f"{type_} | None", "object"}
        if generic(given.annotation) not in accepted and "Any" not in type_:
            return f"{given.name} is {given.annotation}, not {type_}"
    declared = inspect.signature(RULES[name].default).return_annotation
    returned = generic(inspect.signature(function).return_annotation)
    is_collection = declared.startswith(("Iterable[", "Mapping[")) and "[" in returned
    if is_collection or declared in {"object", returned, f"{returned} | None"} or "Any" in declared:
        return ""
    return f"returns {returned}, not {declared}"


MODULES = {
    "asked", "choices", "commands", "companions", "estimate", "installed", "placements", "router", "rules", "setups",
    "speed",
}  # fmt: skip


def test_rules_belong_to_eleven_modules() -> None:
    assert len(RULES) > 40
    assert {rule.module for rule in RULES.values()} == MODULES


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_functions_of_an_engine_have_the_signatures_of_the_rules(engine: Engine) -> None:
    assert {name: text for name in RULES if (text := mismatch(engine, name))} == {}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_no_function_has_the_name_of_a_rule_that_belongs_to_another_module(engine: Engine) -> None:
    """It would look like the rule, but the engine would use the default."""
    folder = Path(importlib.import_module(engine.package).__file__ or "").parent
    misplaced = [
        f"{path.stem}.{node.name}"
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name in RULES
        if (engine.rules_module or RULES[node.name].module) != path.stem
    ]
    assert misplaced == []


def test_functions_of_a_floor_take_model_load_and_setup() -> None:
    with_floor = [engine for engine in ENGINES if engine.floor is not None]
    assert [engine.name for engine in with_floor] == ["llama.cpp"]
    for engine in with_floor:
        for name in ("held_bytes", "cache_bytes", "load_facts"):
            actual = parameters(getattr(engine.floor, name))
            assert [parameter.name for parameter in actual] == ["model", "load", "setup"]


class Empty(Engine):
    """An engine without rules."""

    name = title = "empty"
    flags = table = ()


def test_missing_rule_has_its_default() -> None:
    assert Empty().quant_names() == ()
    assert Empty().placed == frozenset()
    assert Empty().floor is None


def test_missing_needed_rule_is_an_error_with_its_module() -> None:
    message = rf"{Empty.__module__}.estimate has no function estimate"
    with pytest.raises(NotImplementedError, match=message):
        Empty().estimate  # noqa: B018 - the lookup raises it


def test_import_error_inside_a_module_is_not_a_missing_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_name: str) -> None:
        raise ModuleNotFoundError("no numpy", name="numpy")

    monkeypatch.setattr("edgekit.engines.protocol.import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="no numpy"):
        Empty().quant_names  # noqa: B018 - the lookup raises it
