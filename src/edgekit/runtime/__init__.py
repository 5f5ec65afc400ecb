"""The documented names of the built-in engine's generator: `open_text`, `open_stream`, `generate`.

Imported on first use: the engine needs `pip install 'edgekit-models[embed]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.engines.chat import Sampling
    from edgekit.engines.native.generator import StreamEngine, open_stream
    from edgekit.engines.native.sampler import Sampler
    from edgekit.engines.native.text import generate, open_text

__all__ = [
    "Sampler",
    "Sampling",
    "StreamEngine",
    "generate",
    "open_stream",
    "open_text",
]

_PLACES = {
    "Sampler": "edgekit.engines.native.sampler",
    "Sampling": "edgekit.engines.chat",
    "StreamEngine": "edgekit.engines.native.generator",
    "generate": "edgekit.engines.native.text",
    "open_stream": "edgekit.engines.native.generator",
    "open_text": "edgekit.engines.native.text",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        from edgekit.errors import MissingExtraError

        raise MissingExtraError(
            "the built-in engine needs numpy: pip install 'edgekit-models[embed]'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
