"""-ot: PATTERN=BUFFER, with patterns in the ECMAScript grammar of std::regex."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from functools import lru_cache, partial, reduce
from operator import or_

from edgekit.engines.llamacpp.types import Override
from edgekit.errors import UsageError

LONGEST_PATTERN = 1000  # characters
DEEPEST_PATTERN = 50  # nested groups
MOST_TIMES = 1000  # as in x{1000}: names are shorter
MOST_REPEATS = 12  # *, +, ?, {n} in one pattern: three are usual
LONGEST_NAME = 64  # ggml.h: GGML_MAX_NAME; longer names are not loaded
Node = Callable[[str, int], int]  # a name and a bit set of start positions -> end positions
_PLAIN = re.compile(r"(?:[A-Za-z0-9_.|()]|\\\.|\[[0-9]-[0-9]\])*")
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_SETS = {"d": frozenset(string.digits), "w": _WORD, "s": frozenset(string.whitespace)}
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_POSIX = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "digit": string.digits,
    "lower": string.ascii_lowercase,
    "punct": string.punctuation,
    "space": string.whitespace,
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}
MOST_OVERRIDES = 256  # usually one, or one per layer


def read_overrides(text: str) -> tuple[Override, ...]:
    """PATTERN=BUFFER, ...; whether the buffer exists is checked when it is billed. Raises UsageError."""
    entries = text.split(",")
    if len(entries) > MOST_OVERRIDES:
        raise UsageError(f"{len(entries)} overrides are more than {MOST_OVERRIDES}")
    overrides: list[Override] = []
    for entry in entries:
        pattern, _, buffer = entry.partition("=")
        if not (pattern and buffer):
            raise UsageError(
                f"{entry[:60]!r} is not PATTERN=BUFFER, such as exps=CPU "
                "(a comma separates two of them, so a pattern cannot contain one)"
            )
        searcher(pattern)
        overrides.append(Override(pattern=pattern, buffer=buffer))
    return tuple(overrides)


@lru_cache(maxsize=256)
def searcher(pattern: str) -> Callable[[str], bool]:
    """A function that searches a name for the pattern in bounded time. Raises UsageError for what std::regex rejects.

    Python's `re` may backtrack for hours on a hostile pattern. Here each part of the pattern is a node, which maps all
    possible start positions to all end positions at once, so nothing is tried twice.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise UsageError(f"a pattern may have {LONGEST_PATTERN} characters, not {len(pattern)}")
    parser = _Parser(pattern)
    node = parser.choice()
    if parser.position < len(pattern):
        raise parser.error("has a ) without a (")
    if _PLAIN.fullmatch(pattern):  # means the same in Python, and cannot backtrack
        search = re.compile(pattern).search
        return lambda name: len(name) < LONGEST_NAME and search(name) is not None
    return lambda name: len(name) < LONGEST_NAME and node(name, (2 << len(name)) - 1) != 0


class _Parser:
    """Parses a pattern into nodes. `position`: the index of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0
        self.repeats = 0

    def error(self, why: str) -> UsageError:
        return UsageError(f"the pattern {self.text[:60]!r} {why}")

    def take(self, words: str) -> bool:
        """Skips these characters if they come next, and returns whether they did."""
        if self.text.startswith(words, self.position):
            self.position += len(words)
            return True
        return False

    def next_character(self, why: str) -> str:
        """The next character. Raises UsageError with this reason at the end of the pattern."""
        if self.position >= len(self.text):
            raise self.error(why)
        self.position += 1
        return self.text[self.position - 1]

    def choice(self) -> Node:
        """Alternatives, separated by |: every position where one of them ends, as a set of bits."""
        nodes = [self.sequence()]
        while self.take("|"):
            nodes.append(self.sequence())
        if len(nodes) == 1:
            return nodes[0]
        return lambda name, starts: reduce(or_, (node(name, starts) for node in nodes))

    def sequence(self) -> Node:
        """Atoms with their repeats, up to the next | or )."""
        nodes: list[Node] = []
        while self.position < len(self.text) and self.text[self.position] not in "|)":
            node, may_repeat = self.atom()
            nodes.append(self.repeated(node, may_repeat=may_repeat))

        def ends(name: str, starts: int) -> int:
            for node in nodes:
                if not starts:
                    break
                starts = node(name, starts)
            return starts

        return ends

    def atom(self) -> tuple[Node, bool]:
        """The next atom, and whether it may be repeated."""
        character = self.next_character("")
        match character:
            case "^":
                return _position(lambda _text, i: i == 0), False
            case "$":
                return _position(lambda text, i: i == len(text)), False
            case ".":
                return _character(lambda c: c not in "\n\r"), True
            case "(":
                return self.group()
            case "[":
                return self.bracket(), True
            case "\\":
                return self.escape()
            case "*" | "+" | "?" | "{":
                raise self.error(f"has a {character} with nothing to repeat")
        return _character(character.__eq__), True

    def group(self) -> tuple[Node, bool]:
        """A group or a negative lookahead, after its opening parenthesis, and whether it may be repeated."""
        looks = self.take("?!")
        if not looks and not self.take("?:") and self.text.startswith("?", self.position):
            raise self.error("has a kind of group that llama.cpp does not know")
        self.depth += 1
        if self.depth > DEEPEST_PATTERN:
            raise self.error(f"has more than {DEEPEST_PATTERN} groups inside each other")
        node = self.choice()
        self.depth -= 1
        if not self.take(")"):
            raise self.error("has a ( without a )")
        if looks:
            return _position(lambda text, i: not node(text, 1 << i)), False
        return node, True

    def escape(self) -> tuple[Node, bool]:
        """The node of an escape, after its backslash, and whether it may be repeated."""
        character = self.next_character("ends with a \\")
        if character in "bB":

            def is_edge(text: str, i: int) -> bool:
                before, after = i > 0 and text[i - 1] in _WORD, i < len(text) and text[i] in _WORD
                return before != after

            return _position(lambda text, i: is_edge(text, i) == (character == "b")), False
        if character.isdigit() and character != "0":
            raise self.error(f"refers back to group {character}, which EdgeKit does not match")
        return _character(self.class_of(character)), True

    def class_of(self, character: str) -> Callable[[str], bool]:
        """A test for the characters that an escape stands for: d for digits, D for all others."""
        if character.lower() in _SETS:
            characters = _SETS[character.lower()]
            if character.isupper():
                return lambda candidate: candidate not in characters
            return characters.__contains__
        if character in _CONTROL:
            return _CONTROL[character].__eq__
        if character in "cux":
            raise self.error(f"has \\{character}: write the character itself")
        return character.__eq__

    def bracket(self) -> Node:
        """A set of characters such as [^0-9a-f[:space:]], after its opening bracket."""
        is_negated = self.take("^")
        members: list[Callable[[str], bool]] = []
        unclosed = "has a [ without a ]"
        while not self.take("]"):
            if self.take("[:"):
                members.append(self.posix())
                continue
            if self.text.startswith(("[.", "[="), self.position):
                raise self.error("has a [. or [= inside brackets")
            first = self.next_character(unclosed)
            if first == "\\":
                escaped = self.next_character(unclosed)
                if escaped.lower() in _SETS:
                    members.append(self.class_of(escaped))
                    continue
                if escaped == "B":
                    raise self.error("has \\B inside brackets")
                first = "\b" if escaped == "b" else _CONTROL.get(escaped, escaped)
            last = first
            if self.text.startswith("-", self.position) and not self.text.startswith(
                "-]", self.position
            ):
                self.position += 1
                last = self.next_character(unclosed)
                last = self.next_character(unclosed) if last == "\\" else last
                if last < first:
                    raise self.error(f"has the range {first}-{last}, which is empty")
            members.append(partial(_is_between, first, last))
        return _character(lambda c: any(is_member(c) for is_member in members) != is_negated)

    def posix(self) -> Callable[[str], bool]:
        """A test for a named class such as [:digit:], after its [:."""
        close = self.text.find(":]", self.position)
        name = self.text[self.position : close] if close >= 0 else ""
        if name not in _POSIX:
            raise self.error(f"has [:{name[:20]}:], which is not a class of characters")
        self.position = close + 2
        return _POSIX[name].__contains__

    def repeated(self, node: Node, *, may_repeat: bool) -> Node:
        """The node with the repeats that follow it."""
        while (counts := self.counts()) is not None:
            self.repeats += 1
            if self.repeats > MOST_REPEATS:
                raise self.error(f"has more than {MOST_REPEATS} repeats (*, +, ?, {{n}})")
            if not may_repeat:
                raise self.error("repeats a place, such as ^ or \\b")
            self.take("?")  # lazy: does not change whether it matches
            node = _times(node, *counts)
        return node

    def counts(self) -> tuple[int, int | None] | None:
        """The least and most times of a repeat (most None: unlimited); None if no repeat follows."""
        for word, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(word):
                return counts
        if not self.take("{"):
            return None
        close = self.text.find("}", self.position)
        low, comma, high = self.text[self.position : max(close, 0)].partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()):
            raise self.error("has a { that is not a number of repeats")
        self.position = close + 1
        least = int(low[:6])
        most: int | None = least
        if comma:
            most = int(high[:6]) if high else None
        if max(least, most or 0) > MOST_TIMES or (most is not None and most < least):
            raise self.error(f"repeats {low}{comma}{high} times: 0 to {MOST_TIMES}, rising")
        return least, most


def _is_between(first: str, last: str, character: str) -> bool:
    return first <= character <= last


def _character(fits: Callable[[str], bool]) -> Node:
    """A node that matches one character for which `fits` is true."""

    def ends(name: str, starts: int) -> int:
        fitting = sum(1 << index for index, character in enumerate(name) if fits(character))
        return (starts & fitting) << 1

    return ends


def _position(holds: Callable[[str, int], bool]) -> Node:
    """A node that consumes no character; it matches at positions for which `holds` is true, such as ^ at 0."""

    def ends(name: str, starts: int) -> int:
        positions = (index for index in range(len(name) + 1) if holds(name, index))
        return starts & sum(1 << index for index in positions)

    return ends


def _times(node: Node, least: int, most: int | None) -> Node:
    """A node repeated `least` to `most` times. After len(name) rounds the positions no longer change."""

    def ends(name: str, starts: int) -> int:
        for _ in range(min(least, len(name) + 1)):
            before, starts = starts, node(name, starts)
            if starts == before:
                break
        reached = new = starts
        for _ in range(len(name) + 1 if most is None else min(most - least, len(name) + 1)):
            if not new:
                break
            new = node(name, new) & ~reached
            reached |= new
        return reached

    return ends
