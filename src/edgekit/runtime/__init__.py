"""A plan carried out: on real llama.cpp (`start`), or on the built-in engine (`open_text`, `open_stream`, `generate`).

Engines are imported on first use: the built-in one needs `pip install 'edgekit-models[embed]'`,
llama.cpp `pip install 'edgekit-models[llama]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.engines.llamacpp.run.engine import Running, start
    from edgekit.engines.llamacpp.run.types import Launch
    from edgekit.engines.llamacpp.run.watch import Watch
    from edgekit.engines.native.sampler import Sampler
    from edgekit.engines.program import Ended
    from edgekit.engines.sampling import Sampling
    from edgekit.runtime.stream.engine import StreamEngine, open_stream
    from edgekit.runtime.stream.generating import generate
    from edgekit.runtime.stream.text import open_text

__all__ = [
    "Ended",
    "Launch",
    "Running",
    "Sampler",
    "Sampling",
    "StreamEngine",
    "Watch",
    "generate",
    "open_stream",
    "open_text",
    "start",
]

_PLACES = {
    "Ended": "edgekit.engines.program",
    "Launch": "edgekit.engines.llamacpp.run.types",
    "Running": "edgekit.engines.llamacpp.run.engine",
    "Sampler": "edgekit.engines.native.sampler",
    "Sampling": "edgekit.engines.sampling",
    "StreamEngine": "edgekit.runtime.stream.engine",
    "Watch": "edgekit.engines.llamacpp.run.watch",
    "generate": "edgekit.runtime.stream.generating",
    "open_stream": "edgekit.runtime.stream.engine",
    "open_text": "edgekit.runtime.stream.text",
    "start": "edgekit.engines.llamacpp.run.engine",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        from edgekit.errors import MissingExtraError

        raise MissingExtraError(
            "the built-in engine needs numpy: pip install 'edgekit-models[embed]'"
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
