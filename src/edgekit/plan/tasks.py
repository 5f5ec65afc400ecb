"""A task with something changed: other weights, another cache, another setup, a load for several users."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgekit.bill.task import CacheChoice, Task, Variant
from edgekit.bill.types import Load
from edgekit.engines import engine_named
from edgekit.errors import UsageError
from edgekit.model.types import Model
from edgekit.plan.context import UNKNOWN_NATIVE_TOKENS


def with_setup(task: Task, **changes: Any) -> Task:
    """The task for an engine that is started with other values in these fields."""
    start = task.start
    setup = start.setup if start.setup is not None else engine_named(task.engine).default_setup()
    return replace(task, start=replace(start, setup=replace(setup, **changes)))


def with_cache(task: Task, choice: CacheChoice) -> Task:
    changed = replace(task, load=replace(task.load, **choice.load))
    if not choice.setup:
        return changed
    changed = with_setup(changed, **choice.setup)
    settled = changed.start.settled | choice.setup.keys()
    return replace(changed, start=replace(changed.start, settled=settled))


def with_weights(task: Task, variant: Variant) -> Task:
    changed = replace(task, model=variant.model)
    return with_setup(changed, **variant.changes) if variant.changes else changed


def cache_choices(task: Task) -> tuple[CacheChoice, ...]:
    """All that the engine has, the most accurate first; what the caller settled is the only one."""
    return tuple(engine_named(task.engine).cache_choices(task))


def check_users(users: int | None, engine: str) -> None:
    """Raises UsageError for more than an engine serves at once."""
    most = engine_named(engine).most_users
    if users is None or 1 <= users <= most:
        return
    if most == 1:
        raise UsageError("--users: the built-in engine serves one user at a time")
    raise UsageError(f"--users must be 1 to {most:,} for {engine} (got {users:,})")


def for_users(load: Load, users: int | None, engine: str, model: Model) -> Load:
    """The load with a context of its own for each user.

    Raises UsageError for more users than the engine serves at once.
    """
    if users is None:
        return load
    check_users(users, engine)
    geometry = model.geometry
    native = geometry.native_context or geometry.trained_context or UNKNOWN_NATIVE_TOKENS
    return engine_named(engine).load_for_users(load, users, native)
