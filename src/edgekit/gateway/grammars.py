"""How many ways to continue a grammar can leave open at once. Engines list them and search the list for each token.

`("a"{0,30}){0,30}` leaves about 31 * 31 open. llama.cpp needed 8 seconds a token for three such levels, and did not
come back from eleven levels of `{0,2}`. The result is an estimate: a recursive rule counts once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_SIZE = 10**9  # larger results are not told apart
MAX_DEPTH = 100
_BLANK = re.compile(r"\s+|#[^\n]*")
_GBNF_TOKEN = re.compile(
    r"""\s+ | \#[^\n]* | "(?:\\.|[^"\\])*" | \[(?:\\.|[^\]\\])*\] | <[^<>]*> | ::= | [()|?*+]
    | \{\s*\d*\s*,?\s*\d*\s*\} | [A-Za-z0-9_-]+ | .""",
    re.VERBOSE | re.DOTALL,
)
_PATTERN_TOKEN = re.compile(
    r"\\. | \[(?:\\.|[^\]\\])*\] | \(\?[:=!] | [()|?*+] | \{\d*,?\d*\} | .",
    re.VERBOSE | re.DOTALL,
)
_BOUNDS = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class GrammarError(ValueError):
    """The text is not a grammar."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a grammar: the continuations it leaves open, and whether it may be empty."""

    size: int
    is_empty: bool


_TERMINAL = _Piece(1, is_empty=False)


def gbnf_size(text: str) -> int:
    """The size of a grammar in llama.cpp's notation."""
    tokens = [token for token in _GBNF_TOKEN.findall(text) if not _BLANK.fullmatch(token)]
    starts = [index - 1 for index, token in enumerate(tokens) if token == "::=" and index]  # noqa: S105
    if tokens and not starts:
        raise GrammarError("it has no rules")
    ends = [*starts[1:], len(tokens)] if starts else []
    bodies = {
        tokens[start]: tokens[start + 2 : end] for start, end in zip(starts, ends, strict=True)
    }
    sizes: dict[str, _Piece] = {}

    def piece_of(name: str, depth: int) -> _Piece:
        if name not in bodies:
            raise GrammarError(f"no rule {name[:40]!r}")
        if name not in sizes:
            sizes[name] = _TERMINAL  # while it is being computed: a recursive rule
            sizes[name] = _Reader(bodies[name], depth, piece_of).alternatives()
        return sizes[name]

    return max((piece_of(name, 0).size for name in bodies), default=0)


def pattern_size(pattern: str) -> int:
    """The size of a regular expression."""
    return _Reader(_PATTERN_TOKEN.findall(pattern), 0, None).alternatives().size


class _Reader:
    """Reads the right side of one rule, or a regular expression, from its tokens."""

    def __init__(
        self, tokens: Sequence[str], depth: int, rule: Callable[[str, int], _Piece] | None
    ) -> None:
        """`rule` gives the piece that a name stands for; None: names are plain characters."""
        self._tokens, self._next, self._depth, self._rule = tokens, 0, depth, rule

    def alternatives(self) -> _Piece:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GrammarError(f"nested more than {MAX_DEPTH} levels deep")
        pieces = [self._sequence()]
        while self._peek() == "|":
            self._next += 1
            pieces.append(self._sequence())
        self._depth -= 1
        size = sum(piece.size for piece in pieces)
        return _Piece(min(size, MAX_SIZE), any(piece.is_empty for piece in pieces))

    def _sequence(self) -> _Piece:
        """What may be empty leaves open also what follows it."""
        most, open_size, is_empty = 0, 0, True
        while self._peek() not in {"", "|", ")"}:
            piece = self._repeated(self._element())
            most = max(most, open_size + piece.size)
            open_size = open_size + piece.size if piece.is_empty else 0
            is_empty = is_empty and piece.is_empty
        return _Piece(min(most, MAX_SIZE), is_empty)

    def _element(self) -> _Piece:
        token = self._tokens[self._next]
        self._next += 1
        if token.startswith("(") and (token == "(" or token[:2] == "(?"):  # noqa: S105
            piece = self.alternatives()
            if self._peek() != ")":
                raise GrammarError("a bracket is not closed")
            self._next += 1
            return piece
        if token == '""':  # noqa: S105
            return _Piece(0, is_empty=True)
        if self._rule is not None and _NAME.fullmatch(token):
            return self._rule(token, self._depth)
        return _TERMINAL

    def _repeated(self, piece: _Piece) -> _Piece:
        """The piece with the repetitions that follow it."""
        while (token := self._peek()) in {"?", "*", "+"} or token[:1] == "{":
            bounds = _BOUNDS.fullmatch(token)
            if token[:1] == "{" and bounds is None:
                return piece
            self._next += 1
            least, most = {"?": (0, 1), "*": (0, 1), "+": (1, 1)}.get(token, (0, 0))
            if bounds is not None:
                least = int(bounds[1][:10] or 0)
                most = int(bounds[3][:10] or least) if bounds[2] else least
            copies = max(most, 1) + (token != "?")  # noqa: S105
            piece = _Piece(min(piece.size * copies, MAX_SIZE), piece.is_empty or least == 0)
        return piece

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""
