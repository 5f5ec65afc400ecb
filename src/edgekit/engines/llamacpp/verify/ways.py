"""TABLE of ways to reach a llama.cpp on this machine. To add one: a file like binding.py, and its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgekit.engines.llamacpp.types import LlamaMode
from edgekit.engines.llamacpp.verify import binding, fit_tool
from edgekit.engines.llamacpp.verify.types import LoadQuestion
from edgekit.errors import EngineError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyMethod:
    name: str
    mode: LlamaMode  # as whom it starts llama.cpp
    install: str
    is_here: Callable[[], bool]
    told_version: Callable[[], str]
    request: Callable[[LoadQuestion], dict[str, Any]]  # what the child process is told


TABLE = tuple(
    VerifyMethod(
        name=way.NAME,
        mode=way.MODE,
        install=way.INSTALL,
        is_here=way.is_here,
        told_version=way.told_version,
        request=way.request,
    )
    for way in (binding, fit_tool)
)


def choose_way(mode: LlamaMode | None = None, *, really: bool = False) -> VerifyMethod:
    """The first that is here, and that starts llama.cpp as `mode`. EngineError when none is."""
    fitting = [way for way in TABLE if mode in {None, way.mode}]
    if really:
        fitting = [way for way in fitting if way.name == binding.NAME]
    if not fitting:
        raise UsageError(
            f"only {binding.NAME} can load a model, and it starts llama.cpp as a server"
        )
    for way in fitting:
        if way.is_here():
            return way
    who = "" if mode is None else f" as a {mode.value}"
    raise EngineError(
        f"no llama.cpp found on this machine to run{who}: "
        + ", or ".join(way.install for way in fitting)
    )
