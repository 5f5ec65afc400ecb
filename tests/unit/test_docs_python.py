"""Every example of docs/python.md runs and prints what it says; every name of the face has one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import edgekit.models

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = [part.split("```")[0] for part in PAGE.split("```python\n")[1:]]


@pytest.mark.skipif(sys.platform == "win32", reason="another reserve")
@pytest.mark.parametrize("example", EXAMPLES)
def test_it_prints_what_it_says(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, "python.md", "exec"), {})
    told = [line.removeprefix("# ") for line in example.splitlines() if line.startswith("# ")]
    assert told
    assert capsys.readouterr().out.splitlines() == told


@pytest.mark.parametrize("name", edgekit.models.__all__)
def test_every_name_has_an_example(name: str) -> None:
    assert any(f"import {name}" in example or f", {name}" in example for example in EXAMPLES)
