"""TABLE rows of the engines' own flags: what was given -> values, and back into the engine's words.

A flag that was not given leaves no trace, so that the engine's own default counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    engines: Callable[[Any], Any] | None = (
        None  # its value as the engine has it, where ours says more
    )
    repeats: bool = False  # given again it adds to what was given before, divided by a comma
    lender: str = ""  # an engine with a flag of this name: one flag, for whichever is chosen


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


def flag_words(
    flags: Iterable[Flag], values: Mapping[str, Any], *, ours: bool = False
) -> list[str]:
    """The flags once more, as the engine's command line has them; with `ours`, as EdgeKit's own has."""
    words: list[str] = []
    said: set[str] = set()
    for flag in flags:
        if (flag.ours and not ours) or flag.key not in values or flag.key in said:
            continue
        value = values[flag.key]
        if flag.metavar:
            said.add(flag.key)
            shown = value if ours or flag.engines is None else flag.engines(value)
            words += [flag.names[0], _word(shown)]
        elif value == flag.value:
            words.append(flag.names[0])
    return words


def typed(values: Mapping[str, Any]) -> dict[str, str | bool]:
    """Values as they are typed: read again they are the same."""
    return {
        key: value if isinstance(value, bool) else _word(value) for key, value in values.items()
    }


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_word, value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(getattr(value, "name", value))  # a device of the table by its name


def one_of(*choices: str) -> Read:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise UsageError(f"{text[:40]!r} is not one of {', '.join(choices)}")
        return text.lower()

    return read


def whole(least: int = 0, most: int = 2**31 - 1, *, example: str = "8 or 32k") -> Read:
    """A whole number; 32k is 32768."""

    def read(text: str) -> int:
        size = parse_tokens(text.removeprefix("-"), example=example)
        number = -size if text.startswith("-") else size
        if not least <= number <= most:
            raise UsageError(_out_of_range(text[:40], number, least, most))
        return number

    return read


def _out_of_range(text: str, number: int, least: int, most: int) -> str:
    if number > most:
        return f"must be at most {most:,} (got {text})"
    return (
        f"must not be negative (got {text})"
        if not least
        else f"must be at least {least} (got {text})"
    )


def read_number(flag: str, text: str | None, least: int = 0, most: int = 2**31 - 1) -> int | None:
    """None where it was not given. Raises UsageError that names the flag."""
    example = "8 or 32k" if "context" in flag else "8"
    return None if text is None else read(flag, whole(least, most, example=example), text)


def read(flag: str, reader: Read, text: str) -> int:
    try:
        number: int = reader(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error
    return number


def share(text: str) -> float:
    """A part of a whole, above 0 and up to 1."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise UsageError(f"{text[:40]!r} is not a share (above 0, up to 1)")
    return number


def shares(text: str) -> tuple[float, ...]:
    """'3,1' -> how a whole is divided."""
    try:
        found = tuple(float(word) for word in text.replace("/", ",").split(","))
    except ValueError:
        found = ()
    if not found or not all(one == 0 or 1e-18 < one < 1e18 for one in found) or not sum(found):
        raise UsageError(f"{text[:40]!r} is not a list of shares (write for example 3,1)")
    return found


def names(text: str) -> tuple[str, ...]:
    """'a.gguf,b.gguf' -> both."""
    found = tuple(word for word in text.split(",") if word)
    if not found:
        raise UsageError("no file given")
    return found


def size(text: str) -> int:
    return parse_size(text)


def sizes(text: str) -> tuple[int, ...]:
    """'24G,24G' -> bytes of each."""
    return tuple(parse_size(word) for word in text.split(","))
