"""tools/structure.py and tools/traced_command.py: import cycles, upward imports, single-use helpers, and parses of a value."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tools.structure import (
    cycles,
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


def test_cycles_counts_imports_in_functions_and_for_types() -> None:
    trees = {path: ast.parse(text) for path, text in RING.items()}
    ring = {"edgekit.a.one", "edgekit.a.two", "edgekit.a.three"}
    assert cycles(import_graph(trees, with_typing=False)) == [ring]
    assert cycles(import_graph(trees, with_typing=True)) == [ring, {"edgekit.b", "edgekit.c"}]


def test_cycles_of_imports_in_one_direction_is_empty() -> None:
    trees = {"a.py": ast.parse("from edgekit.b import x"), "b.py": ast.parse("x = 1")}
    assert cycles(import_graph(trees, with_typing=True)) == []


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


def test_upward_imports_finds_imports_of_a_higher_layer() -> None:
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
    assert [helper.name for helper in single_use_helpers(tree)] == ["_once"]
    assert inner_imports(tree) == [6]
    assert lines_with_any(tree) == [4]
