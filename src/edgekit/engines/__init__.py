"""What each engine allocates. TABLE of engines; each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.errors import UsageError
from edgekit.model.types import Model
from edgekit.sources.types import Container

ENGINES = {
    "llama.cpp": "edgekit.engines.llamacpp",
    "vllm": "edgekit.engines.vllm",
    "mlx": "edgekit.engines.mlx",
    "stream": "edgekit.engines.native",  # our own: it reads weights from the file as it needs them
}
FROM_GGUF = frozenset({"llama.cpp", "stream"})  # those that load such files
_ALIASES = {
    "llamacpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "llama_cpp": "llama.cpp",
    "gguf": "llama.cpp",
    "ollama": "llama.cpp",
    "mlx-lm": "mlx",
    "mlx_lm": "mlx",
    "edgekit": "stream",
    "built-in": "stream",
    "builtin": "stream",
    "streaming": "stream",
}


class Engine(Protocol):
    """What the module of an engine has."""

    NAME: str
    VERSION: str

    def estimate(self, model: Model, load: Load, setup: Any) -> MemoryEstimate: ...


def engine_name(name: str) -> str:
    """The engine's name as the table has it. Raises UsageError."""
    wanted = name.lower()
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in ENGINES:
        raise UsageError(
            f"unknown engine {name[:40]!r}; choose one of {', '.join(ENGINES)}", about="engine"
        )
    return wanted


def engine_named(name: str) -> Engine:
    return cast("Engine", import_module(f"{ENGINES[engine_name(name)]}.estimate"))


def rules_version(name: str, setup: object) -> str:
    """The version of the engine that a bill for `setup` is of."""
    named = getattr(setup, "version_name", None)  # only llama.cpp has rules for several
    return engine_named(name).VERSION if named is None else str(named)


def engine_for(model: Model) -> str:
    """The engine that a model's files are made for."""
    if model.header.container is Container.GGUF:
        return "llama.cpp"
    return "mlx" if model.header.mlx else "vllm"
