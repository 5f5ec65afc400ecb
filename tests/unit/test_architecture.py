"""docs/architecture.md says what is true of the source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

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
    result = {
        path.stem
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    }
    assert result - OUTSIDE == set(_documented())


PATHS = sorted(set(re.findall(r"`([\w/]+(?:/|\.\w+))`", _section("Where things are added"))))


@pytest.mark.parametrize("path", PATHS)
def test_where_things_are_added_exists(path: str) -> None:
    """NAME is any name; a bare file is one of every engine's folder."""
    pattern = path.replace("NAME", "*")
    places = (ROOT, SOURCE, SOURCE / "engines" / "llamacpp")
    assert any(list(place.glob(pattern.rstrip("/"))) for place in places)
