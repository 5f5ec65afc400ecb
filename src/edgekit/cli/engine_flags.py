"""TABLE rows of the engines' own flags -> argparse, and what of them was given.

A flag that was not given leaves no trace, so that the engine's own default counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from edgekit.engines import engine_named, engine_names
from edgekit.engines.common_flags import CONTEXT, QUANT, given_flags
from edgekit.engines.flags import COMMON, Flag
from edgekit.errors import UsageError
from edgekit.units import parse_tokens

CHOSEN_CONTEXT = (
    "context in tokens: 8192, 32k, 0 for the native context (default: chosen to fit, from 16k up); "
    "also --ctx, --max-model-len"
)


def add_engine_flags(
    parser: argparse.ArgumentParser,
    *,
    engines: tuple[str, ...] = engine_names(),
    several: bool = False,
    context_help: str | None = None,
    engine_help: str | None = None,
    without: frozenset[str] = frozenset(),
    hidden: frozenset[str] = frozenset(),
) -> None:
    """`hidden` flags are read, so that an error can say what to use instead, but --help does not list them."""
    *first, last = (*engines, "auto", "all") if several else engines
    named = f"{', '.join(first)} or {last}"
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
        found = engine_named(engine)
        flags = tuple(
            flag._replace(help=argparse.SUPPRESS) if flag.key in hidden else flag
            for flag in found.flags
            if flag.key not in without and flag.lender not in engines
        )
        add_flags(parser, engine, found.title, flags)


def has_flags(arguments: argparse.Namespace) -> bool:
    return bool(given_flags(arguments)) or arguments.engine is not None


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
            action=_Joined if flag.repeats else _OneAnswer if flag.aliases else "store",
        )  # fmt: skip
        if flag.aliases:
            group.add_argument(
                *flag.aliases, dest=dest, metavar=flag.metavar, default=argparse.SUPPRESS,
                help=argparse.SUPPRESS, action=_OneAnswer,
            )  # fmt: skip


class _Joined(argparse.Action):
    """Given several times, a flag's values are one list."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, f"{before},{values}" if before is not None else values)


class _OneAnswer(argparse.Action):
    """Of a flag with several names: they may repeat each other, but not contradict."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, values)
        if before != values and _plain(before) != _plain(values):
            parser.error(f"{option_string} {values}: {before} was given already")
        setattr(namespace, self.dest, values)


def _plain(text: object) -> object:
    """4k and 4096 are the same."""
    try:
        return parse_tokens(str(text))
    except UsageError:
        return text
