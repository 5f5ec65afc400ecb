"""What llama.cpp's loader requires of each architecture: reads and evaluates loader_table.tsv.

tools/loader_table.py generates the table from llama.cpp's source. Shapes and conditions use llama.cpp's variables
(n_embd, n_head, il); a variable without a value makes an expression unknown (None), never wrong.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pkgutil import get_data  # importlib.resources takes 5 ms to import

Number = int | bool
Words = Mapping[str, int]

ANYTHING = "*"
BLOCK = "blk."
HAS = "has_"  # followed by a tensor's name: whether the file has it
QKV = "qkv"  # create_tensor_qkv: one fused matrix, or three
GATE_UP = "gate_up_exps"  # create_tensor_gate_up_exps: one fused matrix, or two


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededTensor:
    name: str  # without block number
    in_block: bool
    required: bool
    condition: str  # empty: always
    shape: tuple[str, ...]  # innermost first, as in llama.cpp


@dataclass(slots=True, kw_only=True)
class Loader:
    """The rows of one architecture."""

    keys: tuple[str, ...] = ()  # required, without the architecture's prefix
    fields: dict[str, tuple[str, int | None]] = field(
        default_factory=dict
    )  # variable -> key, default
    computed: frozenset[str] = frozenset()  # variables that the loader computes itself
    checks: list[tuple[str, str]] = field(default_factory=list)  # condition, message if it is false
    tensors: list[NeededTensor] = field(default_factory=list)


@cache
def loader_of(architecture: str) -> Loader | None:
    """The rows of an architecture; None if it is not in the table."""
    found: Loader | None = None
    text = get_data("edgekit.engines.llamacpp", "loader_table.tsv") or b""
    for row in text.decode().splitlines():
        name, _, rest = row.partition("\t")
        if name != architecture:
            continue
        found = found or Loader()
        kind, *cells = rest.split("\t")
        if kind == "keys":
            found.keys = tuple(cells[0].split())
        elif kind == "fields":
            found.fields = dict(map(_field, cells[0].split()))
        elif kind == "computed":
            found.computed = frozenset(map(_word, cells[0].split()))
        elif kind == "check":
            found.checks.append((cells[0], cells[1]))
        elif kind == "tensors":
            found.tensors.extend(_needed(cell, cells[0]) for cell in cells[1:])
    return found


def _word(name: str) -> str:
    """A field of llama_hparams -> its variable in expressions."""
    return name.removesuffix("_arr").removesuffix("_impl").removesuffix("_full")


def _field(cell: str) -> tuple[str, tuple[str, int | None]]:
    name, key, *default = cell.split("=")
    return _word(name), (key, int(default[0]) if default else None)


def _needed(cell: str, condition: str) -> NeededTensor:
    name, _, shape = cell.removesuffix("]").partition("[")
    required = not name.endswith("?")
    name = name.removesuffix("?")
    return NeededTensor(
        name=name.removeprefix(BLOCK),
        in_block=name.startswith(BLOCK) or name in {QKV, GATE_UP},
        required=required,
        condition=condition,
        shape=tuple(shape.split(",")) if shape else (),
    )


_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def evaluate(expression: str, words: Words) -> Number | None:
    """The value of an expression; None if a variable has no value."""
    if not expression:
        return True
    return None if expression == ANYTHING else _evaluate(_parsed(expression), words)


@cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _evaluate(node: ast.expr, words: Words) -> Number | None:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return words.get(name, False if name.startswith(HAS) else None)
        case (
            ast.BinOp(left=left, op=op, right=right)
            | ast.Compare(left=left, ops=[op], comparators=[right])
        ):
            a, b = _evaluate(left, words), _evaluate(right, words)
            if a is None or b is None or (isinstance(op, ast.FloorDiv | ast.Mod) and b == 0):
                return None
            return _OPERATORS[type(op)](a, b)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            negated = _evaluate(operand, words)
            return None if negated is None else not negated
        case ast.BoolOp(op=op, values=values):
            decides = isinstance(op, ast.Or)  # True decides "or", False decides "and"
            found = [_evaluate(value, words) for value in values]
            if any(value is not None and bool(value) is decides for value in found):
                return decides
            return None if None in found else not decides
        case ast.IfExp(test=test, body=body, orelse=orelse):
            tested = _evaluate(test, words)
            return None if tested is None else _evaluate(body if tested else orelse, words)
    return None
