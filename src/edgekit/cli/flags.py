"""TABLE rows of the engines' own flags -> argparse, and back: what was given, read and in the engine's words.

A flag that was not given leaves no trace, so that the engine's own default counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from edgekit.errors import UsageError
from edgekit.units import parse_size, parse_tokens

COMMON = ""  # the name under which flags of every engine stand

Read = Callable[[str], Any]


class Flag(NamedTuple):
    """One flag. Without a metavar it is a switch."""

    names: tuple[str, ...]  # the first is the one that is told
    key: str
    help: str
    metavar: str = ""
    read: Read = str
    value: Any = True  # what the switch means; for a flag that may stand alone, its text
    alone: bool = False  # may stand without a value
    ours: bool = False  # EdgeKit's own: no part of the engine's command
    aliases: tuple[str, ...] = ()  # what other programs call it; read, and left out of the help
    lender: str = ""  # an engine with a flag of this name: one flag, for whichever is chosen


def add_flags(
    parser: argparse.ArgumentParser, engine: str, title: str, flags: Iterable[Flag]
) -> None:
    group = parser.add_argument_group(title)
    for flag in flags:
        dest = f"{engine}:{flag.key}"
        if not flag.metavar:
            group.add_argument(
                *flag.names, dest=dest, action="store_const", const=flag.value,
                default=argparse.SUPPRESS, help=flag.help,
            )  # fmt: skip
            continue
        group.add_argument(
            *flag.names, dest=dest, metavar=flag.metavar, nargs="?" if flag.alone else None,
            const=flag.value if flag.alone else None, default=argparse.SUPPRESS, help=flag.help,
            action=_OneAnswer if flag.aliases else "store",
        )  # fmt: skip
        if flag.aliases:
            group.add_argument(
                *flag.aliases, dest=dest, metavar=flag.metavar, default=argparse.SUPPRESS,
                help=argparse.SUPPRESS, action=_OneAnswer,
            )  # fmt: skip


class _OneAnswer(argparse.Action):
    """Of a flag with several names: they may repeat each other, and not contradict."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, values)
        if _plain(before) != _plain(values):
            parser.error(f"{option_string} {values}: {before} was said already")
        setattr(namespace, self.dest, values)


def _plain(text: object) -> object:
    """4k and 4096 are the same."""
    try:
        return parse_tokens(str(text))
    except UsageError:
        return text


def given_flags(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Engine -> its flags that were given, as they were typed."""
    found: dict[str, dict[str, Any]] = {}
    for dest, text in vars(arguments).items():
        engine, colon, key = dest.partition(":")
        if colon:
            found.setdefault(engine, {})[key] = text
    return found


def read_flags(flags: Iterable[Flag], given: Mapping[str, Any]) -> dict[str, Any]:
    """Their values. Raises UsageError that names the flag."""
    values: dict[str, Any] = {}
    for flag in flags:
        text = given.get(flag.key)
        if text is None:
            continue
        try:
            values[flag.key] = flag.read(text) if flag.metavar else text
        except UsageError as error:
            raise UsageError(f"{'/'.join(flag.names)}: {error}") from error
    return values


def flag_words(flags: Iterable[Flag], values: Mapping[str, Any]) -> list[str]:
    """The flags once more, as the engine's command line has them."""
    words: list[str] = []
    for flag in flags:
        if flag.ours or flag.key not in values:
            continue
        value = values[flag.key]
        if flag.metavar:
            words += [flag.names[0], _word(value)]
        elif value == flag.value:
            words.append(flag.names[0])
    return words


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def one_of(*choices: str) -> Read:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise UsageError(f"{text[:40]!r} is not one of {', '.join(choices)}")
        return text.lower()

    return read


def whole(least: int = 0, most: int = 2**31 - 1) -> Read:
    """A whole number; 32k is 32768."""

    def read(text: str) -> int:
        number = -parse_tokens(text[1:]) if text.startswith("-") else parse_tokens(text)
        if not least <= number <= most:
            raise UsageError(f"{text[:40]} is not between {least} and {most:,}")
        return number

    return read


def share(text: str) -> float:
    """A part of a whole, above 0 and up to 1."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise UsageError(f"{text[:40]!r} is not a share above 0 and up to 1")
    return number


def shares(text: str) -> tuple[float, ...]:
    """'3,1' -> how a whole is divided."""
    try:
        found = tuple(float(word) for word in text.replace("/", ",").split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= one < 1e18 for one in found) or not sum(found):
        raise UsageError(f"{text[:40]!r} is not a list of shares such as 3,1")
    return found


def names(text: str) -> tuple[str, ...]:
    """'a.gguf,b.gguf' -> both."""
    found = tuple(word for word in text.split(",") if word)
    if not found:
        raise UsageError("names nothing")
    return found


def size(text: str) -> int:
    return parse_size(text)


def sizes(text: str) -> tuple[int, ...]:
    """'24G,24G' -> bytes of each."""
    return tuple(parse_size(word) for word in text.split(","))
