"""Nouns of a told verdict: a result and what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgekit.bill.verdict import Change, Verdict
from edgekit.engines.commands import Command
from edgekit.errors import EdgekitError
from edgekit.report.bill import Bill


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One model on one engine and machine."""

    bill: Bill = field(repr=False)  # label, reference, version, asked, command, notes, estimate
    result: Verdict
    changes: tuple[Change, ...] = ()
    flags: Mapping[str, str | bool] = field(
        default_factory=dict
    )  # of the engine, as they are typed
    ready: tuple[Command, ...] = field(default=(), repr=False)  # commands for every program
    is_remote: bool = False  # the weights are not on this machine
    is_assumed: bool = False  # from the size and quantisation in a name: no file was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """A model, or an engine for it, that could not be judged."""

    reference: str
    engine: str | None
    error: EdgekitError
