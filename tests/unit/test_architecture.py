"""docs/architecture.md says what is true of the source."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from tools.engine_names import VALUE, dependences
from tools.structure import circles, import_graph

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "edgekit"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# Packages that are not part of the line: data, entry points, and an import path that docs/python.md promised.
OUTSIDE = {"samples", "source", "__init__", "__main__"}


def _section(title: str) -> str:
    return TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def _documented() -> list[str]:
    """The packages of the import order, the lowest first."""
    rows = re.findall(r"^\| (`[^|]+`) \|", _section("The import order"), flags=re.MULTILINE)
    return [name.strip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_import_order_is_the_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [
        name.strip().removeprefix("edgekit.")
        for layer in reversed(contract["layers"])
        for name in layer.split("|")
    ]
    assert _documented() == layers


def test_every_package_has_its_place_in_the_order() -> None:
    found = {
        path.stem
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    }
    assert found - OUTSIDE == set(_documented())


def test_nothing_outside_the_engines_compares_with_an_engines_name() -> None:
    """Nor has a table that is keyed by it, in Python or in the page's scripts."""
    assert [one for one in dependences(ROOT) if one.kind != VALUE] == []


def test_engines_do_not_import_each_other_and_no_imports_go_in_circles() -> None:
    trees = {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in SOURCE.rglob("*.py")
    }
    graph = import_graph(trees, with_typing=False)
    assert circles(graph) == []
    folders = {path.parent.name for path in (SOURCE / "engines").glob("*/__init__.py")}

    def engine_of(module: str) -> str | None:
        parts = module.split(".")
        return parts[2] if parts[1:2] == ["engines"] and {*parts[2:3]} & folders else None

    crossing = [
        (module, other)
        for module, others in graph.items()
        for other in others
        if None not in {engine_of(module), engine_of(other)}
        and engine_of(module) != engine_of(other)
    ]
    assert crossing == []


PATHS = sorted(set(re.findall(r"`([\w/]+(?:/|\.\w+))`", _section("Where things are added"))))


@pytest.mark.parametrize("path", PATHS)
def test_where_things_are_added_exists(path: str) -> None:
    """NAME is any name; a bare file is one of every engine's folder."""
    pattern = path.replace("NAME", "*")
    places = (ROOT, SOURCE, SOURCE / "engines" / "llamacpp")
    assert any(list(place.glob(pattern.rstrip("/"))) for place in places)
