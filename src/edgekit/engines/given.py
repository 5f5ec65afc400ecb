"""Flags of several engines that were given together -> the engine they are for, and what each engine gets of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgekit.engines import engine_named, every_engine, lender_of
from edgekit.engines.flags import COMMON, Flag
from edgekit.errors import UsageError

Values = Mapping[str, Any]


def chosen_engines(given: Mapping[str, Values], named: str | None) -> tuple[str, ...]:
    """The engine that was named, else the one whose flags were given. Raises UsageError for another engine's flags."""
    able = [one for one in ((named,) if named else given) if not _foreign(one, given)]
    if given and not able:
        wrong = "; ".join(
            _belonging(one, keys) for one, keys in _foreign(named or "", given).items()
        )
        raise UsageError(
            f"{wrong}; {f'the engine here is {named}' if named else 'choose one with --engine'}"
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
        from edgekit.engines.quant_names import read_quant, takes

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
    """Its own flags that were given, and those that it shares with another engine."""
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


def _belonging(engine: str, keys: Values) -> str:
    named = {flag.key: "/".join(flag.names) for flag in reversed(engine_named(engine).flags)}
    words = ", ".join(named[key] for key in keys)
    return f"{words} {'is a flag' if len(keys) == 1 else 'are flags'} of {engine}"
