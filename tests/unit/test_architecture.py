"""docs/architecture.md agrees with the source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "edgekit"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# Not in the import order: data, entry points, and an import path that docs/python.md documents.
UNORDERED = {"samples", "source", "__init__", "__main__"}


def _section(title: str) -> str:
    return TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def _documented() -> list[str]:
    """The packages of the import order, the lowest first."""
    rows = re.findall(r"^\| (`[^|]+`) \|", _section("The import order"), flags=re.MULTILINE)
    return [name.strip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_documented_import_order_is_the_contract_of_import_linter() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [
        name.strip().removeprefix("edgekit.")
        for layer in reversed(contract["layers"])
        for name in layer.split("|")
    ]
    assert _documented() == layers


def test_every_package_is_in_the_documented_import_order() -> None:
    packages = {
        path.stem
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    }
    assert packages - UNORDERED == set(_documented())


PATHS = sorted(set(re.findall(r"`([\w/]+(?:/|\.\w+))`", _section("Where things are added"))))


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_where_things_are_added_exist(path: str) -> None:
    """NAME stands for any name; a bare file name is a file in an engine's folder."""
    pattern = path.replace("NAME", "*")
    folders = (ROOT, SOURCE, SOURCE / "engines" / "llamacpp")
    assert any(list(folder.glob(pattern.rstrip("/"))) for folder in folders)
