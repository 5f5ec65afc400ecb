"""TABLE rows of the engines' own flags -> argparse, and what of them was given.

A flag that was not given leaves no trace, so that the engine's own default counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from edgekit.engines import either, engine_named, engine_names, lender_of
from edgekit.engines.flags import COMMON, CONTEXT, GIVEN, QUANT, Flag, given_flags
from edgekit.errors import UsageError
from edgekit.units import parse_tokens

CHOSEN_CONTEXT = (
    "context in tokens: 8192, 32k, 0 for the native context (default: chosen to fit, from 16k up); "
    "also --ctx, --max-model-len"
)


def add_engine_flags(
    parser: argparse.ArgumentParser,
    *,
    engines: tuple[str, ...] = (),
    several: bool = False,
    context_help: str | None = None,
    engine_help: str | None = None,
    without: frozenset[str] = frozenset(),
    hidden: frozenset[str] = frozenset(),
) -> None:
    """`engines`: all by default. `hidden` flags are read, so that an error can say what to use instead, but --help does
    not list them.
    """
    engines = engines or engine_names()
    named = either((*engines, "auto", "all") if several else engines)
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help=engine_help or f"{named} (default: by file format; llama.cpp for a name)",
    )
    context = CONTEXT._replace(help=context_help or CONTEXT.help)
    add_flags(parser, COMMON, "every engine", (context, QUANT))
    add_flags_of(parser, engines, without=without, hidden=hidden)


def add_flags_of(
    parser: argparse.ArgumentParser,
    engines: tuple[str, ...],
    *,
    without: frozenset[str],
    hidden: frozenset[str] = frozenset(),
) -> None:
    for engine in engines:
        one = engine_named(engine)
        flags = tuple(
            flag._replace(help=argparse.SUPPRESS) if flag.key in hidden else flag
            for flag in one.flags
            if flag.key not in without and lender_of(flag) not in engines
        )
        add_flags(parser, engine, one.title, flags)


def has_flags(arguments: argparse.Namespace) -> bool:
    return bool(given_flags(arguments)) or arguments.engine is not None


def add_flags(
    parser: argparse.ArgumentParser, engine: str, title: str, flags: Iterable[Flag]
) -> None:
    group = parser.add_argument_group(title)
    for flag in flags:
        group.add_argument(
            *flag.names, dest=GIVEN, action=_Given, engine=engine, flag=flag, help=flag.help,
            metavar=flag.metavar or None, nargs=0 if not flag.metavar else "?" if flag.alone else None,
            const=flag.value, default=argparse.SUPPRESS,
        )  # fmt: skip
        if flag.aliases:
            group.add_argument(
                *flag.aliases, dest=GIVEN, action=_Given, engine=engine, flag=flag,
                help=argparse.SUPPRESS, metavar=flag.metavar, default=argparse.SUPPRESS,
            )  # fmt: skip


class _Given(argparse.Action):
    """Puts a flag under its engine and its key: `given_flags` has them all."""

    def __init__(self, *words: Any, engine: str, flag: Flag, **options: Any) -> None:
        super().__init__(*words, **options)
        self._engine, self._flag = engine, flag

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if not hasattr(namespace, GIVEN):
            setattr(namespace, GIVEN, {})
        given: dict[str, Any] = getattr(namespace, GIVEN).setdefault(self._engine, {})
        value: Any = values if self._flag.metavar else self._flag.value
        before = given.get(self._flag.key)
        if before is not None and self._flag.repeats:
            value = f"{before},{value}"
        elif before is not None and self._flag.aliases and _plain(before) != _plain(value):
            parser.error(f"{option_string} {value}: {before} was given already")
        given[self._flag.key] = value


def _plain(text: object) -> object:
    """4k and 4096 are the same."""
    try:
        return parse_tokens(str(text))
    except UsageError:
        return text
