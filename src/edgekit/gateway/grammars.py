"""How many ways to continue a grammar can leave open at once. Engines list them and search the list for each token.

`("a"{0,30}){0,30}` leaves about 31 * 31 open. llama.cpp needed 8 seconds a token for three such levels, and did not
come back from eleven levels of `{0,2}`. The result is an estimate: a recursive rule counts once. Recursion that
multiplies what is open with each token is refused: choices between recursive alternatives that begin alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

MAX_SIZE = 10**9  # larger results are not told apart
MAX_DEPTH = 100
# Read as llama.cpp reads it. Nothing here tries again (possessive quantifiers), so reading takes linear time.
_GBNF_TOKEN = re.compile(
    r"""(?P<blank> [ \t\n]++ | \#[^\n]*+ )
    | "(?:[^"\\]++|\\.)*+" | \[(?:[^\]\\]++|\\.)*+\] | !?<[^>]*+> | ::= | [()|?*+]
    | \{[ \t\n]*+[0-9]++[ \t\n]*+(?:,[ \t\n]*+[0-9]*+[ \t\n]*+)?\} | [A-Za-z0-9_-]++
    | (?P<wrong> ["\[<{] ) | .""",
    re.VERBOSE | re.DOTALL,
)
_PATTERN_TOKEN = re.compile(
    r"""\\[upPx]\{[^}]*+\} | \\. | \[(?:[^\]\\]++|\\.)*+\] | \(\?[:=!] | [()|?*+]
    | \{(?=\s*+[+-]?+[0-9,}])[^{}()\[\]|\\]*+\}
    | (?P<wrong> \[ | \{(?=\s*+[+-]?+[0-9,}]) ) | .""",  # any other { is a plain character
    re.VERBOSE | re.DOTALL,
)
_INTEGER = re.compile(r"\s*+[+-]?([0-9]{1,10})")  # what follows is ignored, as C does
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ANY_START = (1 << 129) - 1


class GrammarError(ValueError):
    """The text is not a grammar, or one that engines cannot follow; the message says why."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a grammar."""

    size: int  # the continuations it leaves open
    is_empty: bool  # or may be
    starts: int  # a bit for each ASCII character that it can begin with; the last one: any other
    refers_to: frozenset[str] = frozenset()  # rules that refer to it in turn
    calls: frozenset[str] = frozenset()  # rules by which it does
    is_mixed: bool = False  # it does so in a sequence of several different ones, or of three


_EMPTY = _Piece(0, is_empty=True, starts=0)
_UNKNOWN = _Piece(1, is_empty=False, starts=0)


def gbnf_size(text: str) -> int:
    """The size of a grammar in llama.cpp's notation."""
    text = text.replace("\r\n", "\n")
    if "\r" in text or "\0" in text:  # engines disagree whether a line, or the text, ends here
        raise GrammarError("it has a carriage return or a null character")
    tokens = _tokens(_GBNF_TOKEN, text)
    starts = [index - 1 for index, symbol in enumerate(tokens) if symbol == "::="]
    if tokens and starts[:1] != [0]:
        raise GrammarError("it does not begin with a rule")
    bodies: dict[str, Sequence[str]] = {}
    for start, end in pairwise([*starts, len(tokens)]):
        name = tokens[start]
        if not _NAME.fullmatch(name) or name in bodies:
            raise GrammarError(f"{name[:40]!r} is not a name, or names two rules")
        bodies[name] = tokens[start + 2 : end]
    beginnings: dict[str, _Piece] = {}
    pieces: dict[str, _Piece] = {}
    unfinished: set[str] = set()

    def body(name: str) -> Sequence[str]:
        if name not in bodies:
            raise GrammarError(f"no rule {name[:40]!r}")
        return bodies[name]

    def beginning_of(name: str, depth: int) -> _Piece:
        """Only what it starts with is right."""
        if name not in beginnings:
            beginnings[name] = _UNKNOWN  # a rule that begins with itself, which engines refuse
            beginnings[name] = _Reader(body(name), depth, beginning_of, only_first=True).whole()
        return beginnings[name]

    def open_rules(name: str) -> frozenset[str]:
        """The unfinished rules that a finished one refers to, also through others that were unfinished then."""
        piece = pieces[name]
        found = piece.refers_to & unfinished
        for other in piece.refers_to - unfinished - {name}:
            found |= open_rules(other)
        pieces[name] = replace(piece, refers_to=found)
        return found

    def piece_of(name: str, depth: int) -> _Piece:
        calls = frozenset({name})
        if name in unfinished:
            starts = beginning_of(name, depth).starts
            return _Piece(1, False, starts, refers_to=calls, calls=calls, is_mixed=name in mixed)
        if name not in pieces:
            unfinished.add(name)
            pieces[name] = _Reader(body(name), depth, piece_of).whole()
            unfinished.remove(name)
        if not pieces[name].refers_to:
            return pieces[name]
        refers_to = open_rules(name)
        return replace(pieces[name], calls=calls if refers_to else frozenset())

    mixed: set[str] = set()
    for _ in range(2):  # only the first time shows which rules are mixed in the end
        pieces.clear()
        size = max((piece_of(name, 0).size for name in bodies), default=0)
        mixed = {name for name, piece in pieces.items() if piece.is_mixed}
        if not mixed:
            break
    return size


def pattern_size(pattern: str) -> int:
    """The size of a regular expression."""
    return _Reader(_tokens(_PATTERN_TOKEN, pattern), 0, None).whole().size


def _tokens(kinds: re.Pattern[str], text: str) -> list[str]:
    tokens = []
    for match in kinds.finditer(text):
        if match.lastgroup == "wrong":
            place = f"character {match.start() + 1:,}"
            raise GrammarError(f"{match[0]} is not closed, or has something else in it ({place})")
        if match.lastgroup is None:
            tokens.append(match[0])
    return tokens


class _Reader:
    """Reads the right side of one rule, or a regular expression, from its tokens."""

    def __init__(
        self,
        tokens: Sequence[str],
        depth: int,
        rule: Callable[[str, int], _Piece] | None,
        *,
        only_first: bool = False,
    ) -> None:
        """`rule` gives the piece of a name, at this depth; None: names are plain characters. `only_first`: only names
        that the text may begin with are looked up.
        """
        self._tokens, self._next, self._depth, self._rule = tokens, 0, depth, rule
        self._only_first = only_first

    def whole(self) -> _Piece:
        piece = self._alternatives(is_first=True)
        if self._next < len(self._tokens):
            raise GrammarError("a bracket is closed that was not opened")
        return piece

    def _alternatives(self, *, is_first: bool) -> _Piece:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GrammarError(f"nested more than {MAX_DEPTH} levels deep")
        pieces = [self._sequence(is_first=is_first)]
        while self._peek() == "|":
            self._next += 1
            pieces.append(self._sequence(is_first=is_first))
        self._depth -= 1
        _check_choice(pieces)
        return _Piece(
            size=min(sum(piece.size for piece in pieces), MAX_SIZE),
            is_empty=any(piece.is_empty for piece in pieces),
            starts=_starts(pieces),
            refers_to=_union(piece.refers_to for piece in pieces),
            calls=_union(piece.calls for piece in pieces),
            is_mixed=any(piece.is_mixed for piece in pieces),
        )

    def _sequence(self, *, is_first: bool) -> _Piece:
        """What may be empty leaves open also what follows it."""
        most, open_size, starts, is_empty = 0, 0, 0, True
        open_pieces, recursive = list[_Piece](), list[_Piece]()
        while self._peek() not in {"", "|", ")"}:
            piece = self._repeated(self._element(is_first=is_first and is_empty))
            most = max(most, open_size + piece.size)
            starts |= piece.starts if is_empty else 0
            is_empty = is_empty and piece.is_empty
            open_pieces.append(piece)
            open_size += piece.size
            if not piece.is_empty:
                _check_choice(open_pieces)
                open_pieces, open_size = [], 0
            if piece.refers_to:
                recursive.append(piece)
        _check_choice(open_pieces)
        calls = _union(piece.calls for piece in recursive)
        several = len(recursive) > 2 or (len(recursive) == 2 and len(calls) > 1)
        return _Piece(
            size=min(most, MAX_SIZE),
            is_empty=is_empty,
            starts=starts,
            refers_to=_union(piece.refers_to for piece in recursive),
            calls=calls,
            is_mixed=several or any(piece.is_mixed for piece in recursive),
        )

    def _element(self, *, is_first: bool) -> _Piece:
        symbol = self._tokens[self._next]
        self._next += 1
        if symbol == "(" or symbol[:2] == "(?":
            piece = self._alternatives(is_first=is_first)
            if self._peek() != ")":
                raise GrammarError("a bracket is not closed")
            self._next += 1
            return piece
        if self._rule is None:
            return _UNKNOWN  # a regular expression is not recursive
        if symbol == '""':
            return _EMPTY
        if _NAME.fullmatch(symbol):
            return self._rule(symbol, self._depth) if is_first or not self._only_first else _UNKNOWN
        return _Piece(1, is_empty=False, starts=_terminal_starts(symbol))

    def _repeated(self, piece: _Piece) -> _Piece:
        """The piece with the repetitions that follow it."""
        while (bounds := _bounds(self._peek())) is not None:
            symbol, (least, most) = self._tokens[self._next], bounds
            self._next += 1
            copies = max(most, 1) + (symbol != "?")
            size, is_empty = min(piece.size * copies, MAX_SIZE), piece.is_empty or least == 0
            piece = replace(piece, size=size, is_empty=is_empty)
        return piece

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""


def _bounds(symbol: str) -> tuple[int, int] | None:
    """The least and the largest number of repetitions; the same if there is no largest. None: it is something else."""
    if symbol in {"?", "*", "+"}:
        return int(symbol == "+"), 1
    numbers = symbol[1:-1].split(",")
    if symbol[:1] != "{" or symbol == "{" or len(numbers) > 2:
        return None
    found = [_INTEGER.match(number) for number in numbers]
    if any(match is None and number for match, number in zip(found, numbers, strict=True)):
        return None
    least, *rest = [int(match[1]) if match else 0 for match in found]
    return least, max(least, *rest) if rest else least


def _check_choice(pieces: Sequence[_Piece]) -> None:
    """GrammarError if the number of ways that are open can grow with each symbol.

    Such are two recursive pieces that begin alike; and one that goes on with different rules, if another piece begins
    like it: which of them are still to come depends on every choice so far.
    """
    if len(pieces) < 2 or not any(piece.refers_to for piece in pieces):
        return
    recursive = once = twice = 0
    is_alike = False
    for piece in pieces:
        is_alike = is_alike or bool(piece.refers_to and recursive & piece.starts)
        recursive |= piece.starts if piece.refers_to else 0
        twice |= once & piece.starts
        once |= piece.starts
    mixed = [piece for piece in pieces if piece.refers_to and piece.is_mixed]
    if is_alike or _starts(mixed) & twice:
        raise GrammarError(
            "two alternatives of a recursive rule begin alike: join what they have in common"
        )


def _union(names: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*names)


def _starts(pieces: Sequence[_Piece]) -> int:
    starts = 0
    for piece in pieces:
        starts |= piece.starts
    return starts


def _terminal_starts(symbol: str) -> int:
    """The characters that a text or a class in llama.cpp's notation begins with."""
    inner = symbol[1:-1]
    if symbol[0] not in '"[' or "\\" in (inner if symbol[0] == "[" else inner[:1]):
        return _ANY_START
    if symbol[0] == '"':
        return _bit(inner[0])
    is_negated, starts, place = inner[:1] == "^", 0, int(inner[:1] == "^")
    while place < len(inner):
        first = last = inner[place]
        if inner[place + 1 : place + 2] == "-" and place + 2 < len(inner):
            last = inner[place + 2]
            place += 2
        low, high = min(ord(first), 128), min(ord(last), 128)
        starts |= (1 << high + 1) - (1 << low) if low <= high else 0
        place += 1
    return _ANY_START ^ starts | 1 << 128 if is_negated else starts


def _bit(character: str) -> int:
    return 1 << min(ord(character), 128)
