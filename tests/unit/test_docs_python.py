"""Every Python example of the docs runs; those of docs/python.md print what they say, and every name of the face has one."""

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


@pytest.mark.skipif(sys.platform == "win32", reason="another reserve")
@pytest.mark.parametrize("example", EXAMPLES)
def test_it_prints_what_it_says(
    example: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEKIT_LLAMA_VERSION", "0.6")
    exec(compile(example, "python.md", "exec"), {})
    answer = [line.removeprefix("# ") for line in example.splitlines() if line.startswith("# ")]
    assert answer
    assert capsys.readouterr().out.splitlines() == answer


@pytest.mark.parametrize("name", edgekit.models.__all__)
def test_every_name_has_an_example(name: str) -> None:
    assert any(f"import {name}" in example or f", {name}" in example for example in EXAMPLES)


def test_every_attribute_of_a_result_is_listed() -> None:
    section = PAGE.split("\n## PreflightResult\n")[1].split("\n## ")[0]
    public = {name for name in dir(PreflightResult) if not name.startswith("_")}
    listed = set(re.findall(r"`(\w+)(?:\(\))?`", section))
    assert public <= listed


def with_a_model() -> list[str]:
    """Examples that need a file "model.gguf", as every page writes it."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    return [part.split("```")[0] for text in texts for part in text.split("```py\n")[1:]]


@pytest.mark.parametrize("example", with_a_model())
def test_examples_with_a_model_run(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"qwen2.pooling_type": 3, "general.name": "gte-Qwen2-1.5B-instruct"}
    write_chatting(tmp_path / "model.gguf", keys=keys)
    monkeypatch.chdir(tmp_path)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    names: dict[str, object] = {}
    result = types.FunctionType(compile(example, "example", "exec", flags=flags), names)()
    if inspect.iscoroutine(result):
        asyncio.run(result)
    assert {"tokens", "vectors", "token"} & names.keys()
