"""tools/structure.py and tools/traced_command.py: circles of imports, and parses of one text."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tools.structure import (
    circles,
    import_graph,
    inner_imports,
    lines_with_any,
    single_use_helpers,
    upward_imports,
)
from tools.traced_command import Trace

RING = {
    "a/__init__.py": "",
    "a/one.py": "from edgekit.a import two",
    "a/two.py": "def f():\n    from edgekit.a.three import x",
    "a/three.py": "import edgekit.a.one\nx = 1",
    "b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from edgekit.c import C",
    "c.py": "from edgekit.b import B",
}


def test_circles_of_imports_inside_functions_and_for_types() -> None:
    trees = {path: ast.parse(text) for path, text in RING.items()}
    ring = {"edgekit.a.one", "edgekit.a.two", "edgekit.a.three"}
    assert circles(import_graph(trees, with_typing=False)) == [ring]
    assert circles(import_graph(trees, with_typing=True)) == [ring, {"edgekit.b", "edgekit.c"}]


def test_circles_of_a_line() -> None:
    trees = {"a.py": ast.parse("from edgekit.b import x"), "b.py": ast.parse("x = 1")}
    assert circles(import_graph(trees, with_typing=True)) == []


def innermost(text: str) -> int:
    return int(text)


def outer(text: str) -> int:
    innermost(text)
    return innermost(text)


def test_trace_counts_the_innermost_parses() -> None:
    trace = Trace(Path(__file__).parent, "8192")
    sys.setprofile(trace)
    outer("8192")
    outer("4096")
    sys.setprofile(None)
    assert trace.parses == {"test_structure.py:innermost": 2}
    assert trace.called == {"test_structure.py"}


def test_upward_imports() -> None:
    trees = {
        "high/one.py": ast.parse("from edgekit.low import two"),
        "low/two.py": ast.parse("def f():\n    from edgekit.high.one import x"),
        "low/three.py": ast.parse("import edgekit.low.two"),
    }
    result = upward_imports(import_graph(trees, with_typing=True), ("edgekit.high", "edgekit.low"))
    assert result == [("edgekit.low.two", "edgekit.high.one")]


SHORT = """
from typing import Any

def _once(x: Any) -> int:
    '''Doubled.'''
    import math
    return math.floor(2 * x)

def _twice(x):
    return x

def shown(x):
    return _once(x) + _twice(x) + _twice(x)
"""


def test_single_use_helpers_inner_imports_and_any() -> None:
    tree = ast.parse(SHORT)
    assert [each.name for each in single_use_helpers(tree)] == ["_once"]
    assert inner_imports(tree) == [6]
    assert lines_with_any(tree) == [4]
