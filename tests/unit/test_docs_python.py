"""Every Python example of the docs runs; those of docs/python.md print their comments, and every public name has one."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import types
from pathlib import Path

import pytest
from tests.runnable import write_chatting

import edgekit.models
from edgekit.models import PreflightResult

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = [part.split("```")[0] for part in PAGE.split("```python\n")[1:]]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another reserve")
@pytest.mark.parametrize("example", EXAMPLES)
def test_python_page_example_prints_its_comments(
    example: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEKIT_LLAMA_VERSION", "0.6")
    exec(compile(example, "python.md", "exec"), {})
    expected = [line.removeprefix("# ") for line in example.splitlines() if line.startswith("# ")]
    assert expected
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize("name", edgekit.models.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    assert any(f"import {name}" in example or f", {name}" in example for example in EXAMPLES)


def test_every_attribute_of_preflight_result_is_documented() -> None:
    section = PAGE.split("\n## PreflightResult\n")[1].split("\n## ")[0]
    public = {name for name in dir(PreflightResult) if not name.startswith("_")}
    listed = set(re.findall(r"`(\w+)(?:\(\))?`", section))
    assert public <= listed


def py_examples() -> list[str]:
    """The `py` blocks of all pages, which read a file "model.gguf"."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    return [part.split("```")[0] for text in texts for part in text.split("```py\n")[1:]]


@pytest.mark.parametrize("example", py_examples())
def test_py_example_of_any_page_runs(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"qwen2.pooling_type": 3, "general.name": "gte-Qwen2-1.5B-instruct"}
    write_chatting(tmp_path / "model.gguf", keys=keys)
    monkeypatch.chdir(tmp_path)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    variables: dict[str, object] = {}
    result = types.FunctionType(compile(example, "example", "exec", flags=flags), variables)()
    if inspect.iscoroutine(result):
        asyncio.run(result)
    assert {"tokens", "vectors", "token"} & variables.keys()
