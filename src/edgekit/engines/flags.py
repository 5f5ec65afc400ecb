"""A row of an engine's table of flags, and the functions that read and write flags.

The table is the only place that spells an engine's parameters: the command line, REST and Python fields, rows of a
batch, printed commands, the parameters of the engine's own library and the controls of the page are all made from it.
A flag that was not given has no value, so that the engine's own default applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.errors import UsageError
from edgekit.units import parse_size, parse_tokens

if TYPE_CHECKING:  # only to name types: --help must be instant
    import argparse

COMMON = ""  # the name of the flags that every engine has
GIVEN = "engine_flags"  # the attribute of an argparse.Namespace with the flags that the user gave
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
    opposite: bool = False  # the parameter is true if the field is false


class Control(NamedTuple):
    """The flag's control on the page."""

    label: str
    choices: tuple[str, ...] = ()  # of a menu
    default: str | float | None = None  # the engine's default
    fact: str = ""  # the fact of an estimate with the engine's chosen value
    need: str = ""  # what the model or the machine must have
    kind: str = ""  # if the flag alone does not determine it: "layers", "share"
    extra: int = 0  # for layers: how many more than the model's blocks may be chosen
    is_wide: bool = False
    place: int = 1  # the order on the page: low numbers come first


class CacheFlags(NamedTuple):
    """The flags that set the type of the KV cache. Curves name a type as these flags do."""

    keys: tuple[str, ...]  # one, or one for K and one for V; empty if there is only one type
    default: str
    unit: str = ""  # follows the flag's value in the name of a type: " bit"
    also: tuple[tuple[str, str], ...] = ()  # other flags that must be set together with it


class Page(NamedTuple):
    """Texts of the page about an engine."""

    label: str
    program: str  # the heading of its command
    cache: CacheFlags
    is_compared: bool = True  # the catalog is checked for it
    runs: bool = False  # `edgekit run` starts it
    serves: bool = False  # `edgekit serve` starts it
    verdicts: tuple[tuple[str, str], ...] = ()  # status -> word, if not the usual word


class Flag(NamedTuple):
    """One flag. Without a metavar it is a switch; without names only rows of a batch have it."""

    names: tuple[str, ...]  # the first is the one that is printed
    key: str  # of REST and Python
    help: str
    metavar: str = ""
    read: Read = str
    value: Any = True  # of the switch; if `alone`, the text that stands for a missing value
    alone: bool = False  # may be given without a value
    ours: bool = False  # EdgeKit's own: not part of the engine's command
    aliases: tuple[str, ...] = ()  # names in other programs; accepted, but left out of the help
    # A value as words of the engine's command line; None: the first name and the value.
    words: Callable[[Any], Iterable[str]] | None = None
    repeats: bool = False  # may be given several times; the values are joined by commas
    shared: bool = False  # belongs to another engine too: one flag for both
    field: str = ""  # of Load or of the engine's setup; by default the key, if there is one
    meaning: Meaning | None = None  # converts the value if the field has another type
    # Reads it from a row of a batch; None: not in rows.
    row: Callable[[str, Any], Any] | None = None
    option: str = ""  # its name in a row of a batch; by default the key
    parameter: Parameter | None = None
    group: str = ""  # the subject: "weights", "cache", "placement" ...
    control: Control | None = None
    instead_of: str = ""  # the key of a flag with the same meaning
    of_machine: bool = False  # a check takes it from the machine, not from the caller
    companion: str = ""  # the field of Companions for the files that it names
    not_planned: str = ""  # why a plan rejects it: the flag or command to use instead


def read_flags(flags: Iterable[Flag], given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the given texts to the flags' values. Raises UsageError that names the flag."""
    values: dict[str, Any] = {}
    for flag in flags:
        text = given.get(flag.key)
        if text is None:
            continue
        # a bool is the value of a switch that shares its key with a flag that takes a value
        has_text = flag.metavar and not isinstance(text, bool)
        try:
            values[flag.key] = flag.read(text) if has_text else text
        except UsageError as error:
            raise UsageError(f"{'/'.join(flag.names)}: {error}") from error
    return values


def flag_words(
    flags: Iterable[Flag], values: Mapping[str, Any], *, ours: bool = False
) -> list[str]:
    """The values that are not None as words of the engine's command line; with `ours`, of EdgeKit's command line."""
    words: list[str] = []
    written_keys: set[str] = set()
    for flag in flags:
        value = values.get(flag.key)
        if (flag.ours and not ours) or value is None or flag.key in written_keys:
            continue
        if flag.words is not None and not ours:
            words += flag.words(value)
        elif not flag.metavar and value == flag.value:
            words.append(flag.names[0])
        elif flag.metavar and not isinstance(value, bool):
            words += [flag.names[0], _word(value)]
        else:  # another flag of this key has the value
            continue
        written_keys.add(flag.key)
    return words


def companions_in(flags: Iterable[Flag], values: Mapping[str, Any]) -> dict[str, Any]:
    """Companion files: the field of Companions -> the given value."""
    named = {flag.companion: values.get(flag.key) for flag in flags if flag.companion}
    return {companion: value for companion, value in named.items() if value is not None}


def field_values(flags: Iterable[Flag], values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a dataclass that the values set."""
    from dataclasses import fields  # not above: --help must be instant

    known = {field.name for field in fields(kind)}
    set_fields: dict[str, Any] = {}
    for flag in flags:
        name = flag.field or flag.key
        if flag.key in values and name in known and name not in set_fields:
            value = values[flag.key]
            set_fields[name] = flag.meaning.field_of(value) if flag.meaning else value
    return set_fields


def given_values(flags: Iterable[Flag], *instances: Any) -> dict[str, Any]:
    """The inverse of `field_values`: fields that differ from their defaults, as flag values."""
    values: dict[str, Any] = {}
    for flag, value, default in fields_of(flags, *instances):
        if value != default:
            values[flag.key] = flag.meaning.value_of(value) if flag.meaning else value
    return values


def fields_of(flags: Iterable[Flag], *instances: Any) -> Iterator[tuple[Flag, Any, Any]]:
    """Each flag that sets a field of these dataclasses, the field's value and its default."""
    from dataclasses import fields

    known = {
        field.name: (instance, field.default)
        for instance in instances
        for field in fields(instance)
    }
    for flag in flags:
        name = flag.field or flag.key
        if name in known:
            instance, default = known.pop(name)  # two switches may share a key: true and false
            yield flag, getattr(instance, name), default


def read_options(flags: Iterable[Flag], options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row of a batch, as JSON gives them. Raises UsageError that names the option."""
    values: dict[str, Any] = {}
    for flag in flags:
        if flag.row is None:
            continue
        name = flag.option or flag.key
        value = options.get(name)
        if value is not None:
            values[flag.key] = flag.row(name, value)
    return values


def number(name: str, value: Any) -> int:
    """Checks that the value in a row of a batch is a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST:
        raise UsageError(f"{name} {value!r:.60} is not a whole number")
    return value


def text(name: str, value: Any) -> str:
    """Checks that the value in a row of a batch is a string."""
    if not isinstance(value, str):
        raise UsageError(f"{name} {value!r:.60} is not a string")
    return value


def yes_no(name: str, value: Any) -> bool:
    """Checks that the value in a row of a batch is true or false."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} {value!r:.60} is neither true nor false")
    return value


def typed(values: Mapping[str, Any]) -> dict[str, str | bool]:
    """The values as a user types them; reading them gives the same values."""
    return {
        key: value if isinstance(value, bool) else _word(value) for key, value in values.items()
    }


def _word(value: object) -> str:
    """The value as one word of a command line."""
    if isinstance(value, tuple):
        return ",".join(map(_word, value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(getattr(value, "name", value))  # a device of the table by its name


def one_of(*choices: str) -> Read:
    """A reader that accepts one of these words, in any case."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise UsageError(f"{text[:40]!r} is not one of {', '.join(choices)}")
        return text.lower()

    return read


MOST_NUMBER = 2**31 - 1


class Whole:
    """Reads a whole number; 32k is 32768."""

    def __init__(self, least: int = 0, most: int = MOST_NUMBER, example: str = "8 or 32k") -> None:
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


def read_number(flag: str, text: str | None, least: int = 0, most: int = MOST_NUMBER) -> int | None:
    """The whole number of a flag; None if it was not given. Raises UsageError that names the flag."""
    example = "8 or 32k" if "context" in flag else "8"
    return None if text is None else read(flag, Whole(least, most, example=example), text)


def read(flag: str, reader: Read, text: str) -> int:
    """The number that `reader` makes of the text. Raises UsageError that names the flag."""
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
    """Reads the proportions of a split: '3,1' -> (3.0, 1.0)."""
    try:
        numbers = tuple(float(word) for word in text.replace("/", ",").split(","))
    except ValueError:
        numbers = ()
    is_valid = all(number == 0 or 1e-18 < number < 1e18 for number in numbers)
    if not numbers or not is_valid or not sum(numbers):
        raise UsageError(f"{text[:40]!r} is not a list of shares (write for example 3,1)")
    return numbers


def names(text: str) -> tuple[str, ...]:
    """Reads a list of names: 'a.gguf,b.gguf' -> ('a.gguf', 'b.gguf')."""
    listed = tuple(word for word in text.split(",") if word)
    if not listed:
        raise UsageError("no file given")
    return listed


def sizes(text: str) -> tuple[int, ...]:
    """Reads a list of sizes in bytes: '24G,24G'."""
    return tuple(parse_size(word) for word in text.split(","))


# The names of the context flag in the engines and in related programs; all of them are accepted.
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
    """Engine -> the flags that the user gave for it, as typed."""
    return {engine: dict(given) for engine, given in getattr(arguments, GIVEN, {}).items()}
