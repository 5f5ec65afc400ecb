"""The name the project is published under: `edgekit` on PyPI belongs to another project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Installs the other project, or names an extra of it.
FOREIGN = re.compile(
    r"(?<![-\w./])edgekit\\?\[[a-z,]+\]|(?:pip install|uvx|uv tool run) '?edgekit(?![-\w])"
)
TEXTS = [
    path
    for folder in ("src/edgekit", "docs", "tests", "tools", "benchmarks", "examples")
    for pattern in ("*.py", "*.md", "*.js", "*.html")
    for path in (ROOT / folder).rglob(pattern)
    if path != Path(__file__)
] + sorted(ROOT.glob("*.md"))


def test_distribution_name_is_edgekit_models_with_both_commands() -> None:
    assert PROJECT["name"] == "edgekit-models"
    assert PROJECT["scripts"] == {
        "edgekit": "edgekit.__main__:main",
        "edgekit-models": "edgekit.__main__:main",
    }


def test_no_text_installs_the_other_project() -> None:
    matches = {
        str(path.relative_to(ROOT)): FOREIGN.findall(path.read_text(encoding="utf-8"))
        for path in TEXTS
    }
    assert {path: hits for path, hits in matches.items() if hits} == {}


@pytest.mark.parametrize(
    "text",
    ["pip install 'edgekit[web]'", "needs edgekit[llama]", "uvx edgekit", "pip install edgekit"],
)
def test_foreign_pattern_finds_the_other_project(text: str) -> None:
    assert FOREIGN.search(text)


@pytest.mark.parametrize(
    "text",
    ["pip install 'edgekit-models[web]'", "uvx edgekit-models", "pip install .", "edgekit.models"],
)
def test_foreign_pattern_ignores_our_own_name(text: str) -> None:
    assert not FOREIGN.search(text)
