"""How tokens are chosen and how many: the flags of `edgekit run`, by the names that llama.cpp and others have."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgekit.engines.flags import whole
from edgekit.errors import UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.engines.sampling import Sampling


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number") from None


# field of Sampling: (names, metavar, how it is read, help)
_FLAGS: dict[str, tuple[tuple[str, ...], str, Callable[[str], float], str]] = {
    "temperature": (("--temp", "--temperature"), "T", _number, "temperature; 0 takes the top token (default 0.8)"),
    "top_k": (("--top-k",), "K", whole(), "sample among the K likeliest tokens (default 40; 0: all)"),
    "top_p": (("--top-p",), "P", _number, "sample among tokens of total probability P (default 0.95; 1: all)"),
    "min_p": (("--min-p",), "P", _number, "drop tokens below P times the likeliest (default 0.05; 0: none)"),
    "repeat_penalty": (("--repeat-penalty",), "X", _number, "penalty on repeated tokens (default 1: none)"),
    "repeat_last": (("--repeat-last-n",), "N", whole(), "tokens to look back for repetitions (default 64)"),
    "seed": (("-s", "--seed"), "N", whole(most=2**32 - 2), "random seed; the same seed gives the same answer"),
}  # fmt: skip


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for field, (names, metavar, _, told) in _FLAGS.items():
        group.add_argument(*names, dest=field, metavar=metavar, help=told)


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """UsageError that names the flag."""
    from edgekit.engines.sampling import Sampling

    given = {}
    for field, (names, _, read, _) in _FLAGS.items():
        text = getattr(arguments, field)
        if text is None:
            continue
        try:
            given[field] = read(text)
        except UsageError as error:
            raise UsageError(f"{names[-1]}: {error}") from error
    return Sampling(**given)  # type: ignore[arg-type]  # each is read as its field wants it
