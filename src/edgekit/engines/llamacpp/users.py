"""Several users of one llama-server: -np and -c are for all sequences together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.bill.task import Start
from edgekit.bill.types import Load
from edgekit.engines.llamacpp.flags import default_setup
from edgekit.errors import UsageError


def load_for_users(load: Load, users: int, native_tokens: int) -> Load:
    """The load with a context of its own, of the load's length, for each user. A length of 0 is the native one."""
    tokens = native_tokens if load.context_tokens == 0 else load.context_tokens
    together = None if tokens is None else tokens * users
    return replace(load, sequences=users, unified=False, context_tokens=together)


def values_for_users(values: Mapping[str, Any], users: int, load: Load) -> dict[str, Any]:
    """The flags with which every user has a context of their own. Raises UsageError."""
    if "parallel" in values or values.get("unified"):
        raise UsageError("--users N means -np N with a context for each user: give one of them")
    found = {**values, "parallel": users, "unified": False}
    together = load.context_tokens
    return found if together is None else {**found, "context": together}


def embedding_start(start: Start) -> Start:
    """Started to return embeddings."""
    if "embeddings" in start.settled:
        return start
    setup = start.setup if start.setup is not None else default_setup()
    settled = start.settled | {"embeddings"}
    return replace(start, setup=replace(setup, embeddings=True), settled=settled)
