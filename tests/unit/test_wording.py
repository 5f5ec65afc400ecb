"""Messages, notes and help contain no phrase that reads like a translation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import edgekit

ROOT = Path(edgekit.__file__).parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
AVOID = re.compile(
    r"\b((?<!there )is no (?!longer)|are no (?!such)|so many|so long a|(?<!no-)drafter|host memory|beside\b|somebody|nobody|whoever"
    r"|make(s)? no sense|lies in|lie in|stands (in|for|where|before)|switched off|gone on with|made-up|was told"
    r"|may not be read|breaks off|broke off|called off|as asked|modelled here|means nothing)",
    re.IGNORECASE,
)


def shown_texts(path: Path) -> list[str]:
    """Every string literal of a module except docstrings; of an f-string, its literal parts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in statements
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_avoid_translated_phrases(package: str) -> None:
    phrases = [
        f"{path.relative_to(ROOT)}: {text!r}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in shown_texts(path)
        if " " in text and AVOID.search(text)  # a single word is a key
    ]
    assert not phrases
