"""Options as people give them: which engine the flags are for, quantisations by any name, and rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines import engine_named, every_engine, lender_of
from edgekit.engines.flags import COMMON, Flag
from edgekit.errors import UsageError
from edgekit.sources.filenames import close_names

if TYPE_CHECKING:
    from edgekit.engines.protocol import Engine

Values = Mapping[str, Any]
_CONTEXT_WORDS = frozenset(
    {"context", "context_length", "context_size", "ctx", "ctx_size", "num_ctx"}
)


def chosen_engines(given: Mapping[str, Values], named: str | None) -> tuple[str, ...]:
    """The named engine, else the one whose flags were given. Raises UsageError for another engine's flags."""
    able = [one for one in ((named,) if named else given) if not _foreign(one, given)]
    if given and not able:
        wrong: list[str] = []
        for engine, keys in _foreign(named or "", given).items():
            names = {
                flag.key: "/".join(flag.names) for flag in reversed(engine_named(engine).flags)
            }
            words = ", ".join(names[key] for key in keys)
            wrong.append(f"{words} {'is a flag' if len(keys) == 1 else 'are flags'} of {engine}")
        raise UsageError(
            f"{'; '.join(wrong)}; {f'the engine here is {named}' if named else 'choose one with --engine'}"
        )
    return (named,) if named else tuple(able[:1])


def with_one_quant(
    flags: Mapping[str, Mapping[str, Any]], engine: str | None
) -> dict[str, dict[str, Any]]:
    """The flags with `-q`, `--quantize` and `--mix` as `--quant` where their value is not for their own engine.

    So `-q Q8_0` asks for a GGUF and `--engine mlx -q 4bit` for MLX's 4 bits. Raises UsageError for two quantisations.
    """
    given = {one: dict(keys) for one, keys in flags.items()}
    named = {given[COMMON]["quant"]} if given.get(COMMON, {}).get("quant") is not None else set()
    for owner, key in ((one.name, one.quant_key) for one in every_engine()):
        name = given.get(owner, {}).get(key)
        if name is None:
            continue
        if (engine or owner) != owner or not takes(owner, name):
            del given[owner][key]
            if not given[owner]:
                del given[owner]
            named.add(name)
            continue
        given[owner][key] = read_quant(owner, name)
        if named and engine is None:
            named.add(name)
    if len({str(name).upper() for name in named}) > 1:
        raise UsageError(
            f"{' and '.join(sorted(map(str, named)))} are two different quantisations: give one"
        )
    if named:
        given[COMMON] = {**given.get(COMMON, {}), "quant": named.pop()}
    return given


def given_to(engine: str, given: Mapping[str, Values]) -> dict[str, Any]:
    """The given flags of this engine, including those that it shares with another."""
    lent = {
        flag.key: given[lender_of(flag)][flag.key]
        for flag in _lent(engine)
        if flag.key in given.get(lender_of(flag), {})
    }
    return {**lent, **given.get(engine, {})}


def _lent(engine: str) -> Iterator[Flag]:
    return (flag for flag in (engine_named(engine).flags if engine else ()) if flag.shared)


def _foreign(engine: str, given: Mapping[str, Values]) -> dict[str, dict[str, Any]]:
    """Other engine -> flags that were given and that this one does not have."""
    lent = {(lender_of(flag), flag.key) for flag in _lent(engine)}
    found = {
        other: {key: text for key, text in keys.items() if (other, key) not in lent}
        for other, keys in given.items()
        if other != engine
    }
    return {other: keys for other, keys in found.items() if keys}


def read_quant(engine: str, name: str) -> str:
    """The name as the engine's own option has it: 'q4_k' -> 'Q4_K_M' for llama.cpp, '4bit' -> 'q4' for MLX.

    Raises UsageError with the names that the engine has.
    """
    one = engine_named(engine)
    found = one.read_quant(name)
    if found is not None:
        return found
    others = [other.name for other in every_engine() if takes(other.name, name)]
    hint = f" ({name[:40]} is for {' and '.join(others)})" if others else ""
    raise UsageError(
        f"{one.title} has no quantisation {name[:40]!r}{hint}; it has {', '.join(one.quant_names())}"
    )


def takes(engine: str, name: str) -> bool:
    """Whether the engine has a quantisation of this name."""
    one = engine_named(engine)
    return bool(one.quant_key) and one.read_quant(name) is not None


def options_with_quant(
    engine: str, options: Mapping[str, Any], quant: str | None
) -> Mapping[str, Any]:
    """Options of a row with the quantisation as the engine's own option, in place of `quant`. Raises UsageError."""
    one = engine_named(engine)
    own = option_of(one, one.quant_key)
    if "quant" in options and own not in options:  # recorded rows of MLX have both
        options = {key: value for key, value in options.items() if key != "quant"}
    if quant is None:
        return options
    value = read_quant(engine, quant)
    if options.get(own, value) != value:
        raise UsageError(f"{quant[:40]} and {own} {options[own]!r:.40} differ: give one")
    return {**options, own: value}


class RowOptions(Mapping[str, Any]):
    """A mapping that records which options were read, so that unread ones can be reported."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(name for name in self._values if name not in self._asked)

    def require_known(self, engine: str) -> None:
        """Call after reading: UsageError for an option that the engine lacks, with the nearest one."""
        unused = engine_named(engine).unused_options
        unknown = [name for name in self.ignored if name not in unused]
        if unknown:
            name = str(unknown[0])[:60]
            raise UsageError(
                f"{engine} has no option {name!r}{did_you_mean(name, self._asked, engine)}"
            )


def option_of(engine: Engine, key: str) -> str:
    """What a row of a batch calls the flag with this key."""
    return next((flag.option or key for flag in engine.table if flag.key == key), key)


def context_option(engine: str) -> str:
    return option_of(engine_named(engine), "context")


def did_you_mean(name: str, known: Iterable[str], engine: str) -> str:
    """': did you mean n_ctx?'; empty if nothing is similar."""
    near = close_names(name, sorted(known), limit=1)
    people_write = _CONTEXT_WORDS | {context_option(one.name) for one in every_engine()}
    if name.lower() in people_write:
        near = (context_option(engine),)
    return f": did you mean {near[0]}?" if near else ""
