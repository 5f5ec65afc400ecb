"""The command that starts the dummy engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.data.dummy_engine import ENGINE
from tests.data.dummy_engine.flags import FLAGS

from edgekit.bill.types import MemoryEstimate, Setup
from edgekit.engines.commands import Command, Startup
from edgekit.engines.flags import flag_words
from edgekit.model import OpenModel


def commands(startup: Startup) -> Iterator[Command]:
    words = _words(startup.label, ENGINE.values(startup.load, startup.setup))
    yield startup.command("dummy-server", "dummy-server", words)


def estimate_command(
    values: Mapping[str, Any], _setup: Setup, _estimate: MemoryEstimate, opened: OpenModel
) -> tuple[list[str], list[str]]:
    return _words(opened.label, values), []


def _words(model: str, values: Mapping[str, Any]) -> list[str]:
    tokens = values.get("context")
    length = [] if tokens is None else ["--tokens", str(tokens)]
    return ["dummy-server", model, *length, *flag_words(FLAGS, values)]
