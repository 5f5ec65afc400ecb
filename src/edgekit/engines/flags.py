"""A row of an engine's table of flags, and the functions that read and write flags.

The table is the only place that spells an engine's parameters: the command line, REST and Python fields, rows of a
batch, printed commands, the parameters of the engine's own library and the controls of the page are all made from it.
A flag that was not given is absent, so that the engine's own default applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.errors import UsageError
from edgekit.units import parse_size, parse_tokens

if TYPE_CHECKING:  # only to name types: --help must be instant
    import argparse

COMMON = ""  # the name of the flags that every engine has
GIVEN = "engine_flags"  # the attribute of an argparse.Namespace with the flags that were given
LARGEST = 2**63 - 1

Read = Callable[[str], Any]


class Meaning(NamedTuple):
    """Converts a flag's value to its field's value, and back."""

    field_of: Callable[[Any], Any]
    value_of: Callable[[Any], Any]


class Parameter(NamedTuple):
    """The name of the flag in the engine's library."""

    name: str
    enum: str = ""  # the C enum that its values are members of
    opposite: bool = False  # true where the field is false


class Control(NamedTuple):
    """The flag's control on the page."""

    label: str
    choices: tuple[str, ...] = ()  # of a menu
    default: str | float | None = None  # the engine's default
    fact: str = ""  # the fact of an estimate with the engine's chosen value
    need: str = ""  # what the model or the machine must have
    kind: str = ""  # where the flag does not tell: "layers", "share"
    extra: int = 0  # of layers: those beyond the model's blocks
    is_wide: bool = False
    place: int = 1  # among the controls: lower ones come first


class CacheFlags(NamedTuple):
    """The flags that set the type of the KV cache. Curves name a type as these flags do."""

    keys: tuple[str, ...]  # one, or one for K and one for V; none where there is only one type
    default: str
    unit: str = ""  # what the name of a type adds to the value of the flag
    also: tuple[tuple[str, str], ...] = ()  # flags that have to be set with it


class Page(NamedTuple):
    """Texts of the page about an engine."""

    label: str
    program: str  # the heading of its command
    cache: CacheFlags
    is_compared: bool = True  # the catalog is checked for it
    runs: bool = False  # `edgekit run` starts it
    serves: bool = False  # `edgekit serve` does
    verdicts: tuple[tuple[str, str], ...] = ()  # status -> word, where it is not the usual one


class Flag(NamedTuple):
    """One flag. Without a metavar it is a switch; without names only rows of a batch have it."""

    names: tuple[str, ...]  # the first is the one that is printed
    key: str  # of REST and Python
    help: str
    metavar: str = ""
    read: Read = str
    value: Any = True  # what the switch means; for a flag that needs no value, its text
    alone: bool = False  # needs no value
    ours: bool = False  # EdgeKit's own: not part of the engine's command
    aliases: tuple[str, ...] = ()  # what other programs call it; read, and left out of the help
    # What the engine's command line has for a value, where that is not the first name and the value.
    words: Callable[[Any], Iterable[str]] | None = None
    repeats: bool = False  # given again it adds to what was given before, divided by a comma
    shared: bool = False  # another engine has it, too: one flag, for whichever is chosen
    field: str = ""  # of Load or of the engine's setup; by default the key, if there is one
    meaning: Meaning | None = None  # where the field has another type than the value
    row: Callable[[str, Any], Any] | None = None  # reads it in a row of a batch; None: rows lack it
    option: str = ""  # its name there; by default the key
    parameter: Parameter | None = None
    group: str = ""  # what it is about: "weights", "cache", "placement" ...
    control: Control | None = None
    instead_of: str = ""  # the key of a flag that says the same in another way
    of_machine: bool = False  # a check takes it from the machine, not from the caller
    companion: str = ""  # the field of Companions with the files that it names
    not_planned: str = ""  # what to use instead where a plan chooses it, or leaves it to check


def read_flags(flags: Iterable[Flag], given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags' values. Raises UsageError that names the flag."""
    values: dict[str, Any] = {}
    for flag in flags:
        text = given.get(flag.key)
        if text is None:
            continue
        try:
            # a bool is the value of a switch that has the same key as a flag with a value
            is_typed = flag.metavar and not isinstance(text, bool)
            values[flag.key] = flag.read(text) if is_typed else text
        except UsageError as error:
            raise UsageError(f"{'/'.join(flag.names)}: {error}") from error
    return values


def flag_words(
    flags: Iterable[Flag], values: Mapping[str, Any], *, ours: bool = False
) -> list[str]:
    """The values that are not None, as the engine's command line has them; with `ours`, as EdgeKit's own has."""
    words: list[str] = []
    done: set[str] = set()
    for flag in flags:
        value = values.get(flag.key)
        if (flag.ours and not ours) or value is None or flag.key in done:
            continue
        if flag.words is not None and not ours:
            words += flag.words(value)
        elif not flag.metavar and value == flag.value:
            words.append(flag.names[0])
        elif flag.metavar and not isinstance(value, bool):
            words += [flag.names[0], _word(value)]
        else:
            continue
        done.add(flag.key)
    return words


def companions_in(flags: Iterable[Flag], values: Mapping[str, Any]) -> dict[str, Any]:
    """Companion files: the field of Companions -> the given value."""
    named = {flag.companion: values.get(flag.key) for flag in flags if flag.companion}
    return {companion: value for companion, value in named.items() if value is not None}


def field_values(flags: Iterable[Flag], values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a dataclass that the values set."""
    from dataclasses import fields  # not above: --help must be instant

    known = {field.name for field in fields(kind)}
    found: dict[str, Any] = {}
    for flag in flags:
        name = flag.field or flag.key
        if flag.key in values and name in known and name not in found:
            value = values[flag.key]
            found[name] = flag.meaning.field_of(value) if flag.meaning else value
    return found


def given_values(flags: Iterable[Flag], *described: Any) -> dict[str, Any]:
    """The inverse of `field_values`: fields that differ from their defaults, as flag values."""
    found: dict[str, Any] = {}
    for flag, value, default in fields_of(flags, *described):
        if value != default:
            found[flag.key] = flag.meaning.value_of(value) if flag.meaning else value
    return found


def fields_of(flags: Iterable[Flag], *described: Any) -> Iterator[tuple[Flag, Any, Any]]:
    """Each flag that sets a field of these dataclasses, the field's value and its default."""
    from dataclasses import fields

    known = {field.name: (one, field.default) for one in described for field in fields(one)}
    seen: set[str] = set()
    for flag in flags:
        name = flag.field or flag.key
        if name in known and name not in seen:  # two switches of one key are its true and false
            seen.add(name)
            yield flag, getattr(known[name][0], name), known[name][1]


def read_options(flags: Iterable[Flag], options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row of a batch, as JSON gives them. Raises UsageError that names the option."""
    values: dict[str, Any] = {}
    for flag in flags:
        if flag.row is None:
            continue
        name = flag.option or flag.key
        given = options.get(name)
        if given is not None:
            values[flag.key] = flag.row(name, given)
    return values


def number(name: str, value: Any) -> int:
    """A whole number in a row."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST:
        raise UsageError(f"{name} {value!r:.60} is not a whole number")
    return value


def text(name: str, value: Any) -> str:
    """A string in a row."""
    if not isinstance(value, str):
        raise UsageError(f"{name} {value!r:.60} is not a string")
    return value


def yes_no(name: str, value: Any) -> bool:
    """True or false in a row."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} {value!r:.60} is neither true nor false")
    return value


def typed(values: Mapping[str, Any]) -> dict[str, str | bool]:
    """Values as one would type them; reading them gives the same values."""
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


class Whole:
    """Reads a whole number; 32k is 32768."""

    def __init__(self, least: int = 0, most: int = 2**31 - 1, example: str = "8 or 32k") -> None:
        self.least, self.most, self.example = least, most, example

    def __call__(self, text: str) -> int:
        size = parse_tokens(text.removeprefix("-"), example=self.example)
        number = -size if text.startswith("-") else size
        if number > self.most:
            raise UsageError(f"must be at most {self.most:,} (got {text[:40]})")
        if number < self.least:
            limit = f"be at least {self.least}" if self.least else "not be negative"
            raise UsageError(f"must {limit} (got {text[:40]})")
        return number


def read_number(flag: str, text: str | None, least: int = 0, most: int = 2**31 - 1) -> int | None:
    """None where it was not given. Raises UsageError that names the flag."""
    example = "8 or 32k" if "context" in flag else "8"
    return None if text is None else read(flag, Whole(least, most, example=example), text)


def read(flag: str, reader: Read, text: str) -> int:
    try:
        number: int = reader(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error
    return number


def share(text: str) -> float:
    """Reads a share above 0 and up to 1."""
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


def sizes(text: str) -> tuple[int, ...]:
    """'24G,24G' -> bytes of each."""
    return tuple(parse_size(word) for word in text.split(","))


# What the engines and the programs around them call it: one flag, whichever of them is known.
CONTEXT_NAMES = (
    "--ctx", "--context", "--context-len", "--context-length", "--max-model-len", "--n-ctx",
)  # fmt: skip
CONTEXT = Flag(
    ("-c", "--ctx-size"),
    "context",
    "context in tokens: 8192, 32k (default: the native context); also --ctx, --max-model-len",
    "N",
    Whole(),
    aliases=CONTEXT_NAMES,
    field="context_tokens",
    row=number,
)
QUANT = Flag(
    ("--quant",),
    "quant",
    "quantisation of the weights: Q4_K_M, Q8_0 (llama.cpp), 4bit (MLX), fp8 (vLLM)",
    "NAME",
)


def given_flags(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Engine -> its flags that were given, as they were typed."""
    return {engine: dict(given) for engine, given in getattr(arguments, GIVEN, {}).items()}
