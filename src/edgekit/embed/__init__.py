"""Embeddings from multi-gigabyte models in a few dozen megabytes of memory: `open_embedder`.

    from edgekit.embed import open_embedder

    with open_embedder("model.gguf", memory_budget="200M") as embedder:
        vectors = embedder.embed(["a text", "another one"])

Imported on first use: numpy and tokenizers come with `pip install 'edgekit-models[embed]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.embed.embedder import Embedder
    from edgekit.embed.open import Choices, open_embedder, plan_embedder
    from edgekit.embed.types import EmbedPlan, Mode
    from edgekit.engines.native.families import Pooling
    from edgekit.engines.native.file import Limits

__all__ = [
    "Choices",
    "EmbedPlan",
    "Embedder",
    "Limits",
    "Mode",
    "Pooling",
    "open_embedder",
    "plan_embedder",
]

_MODULES = {
    "Choices": "edgekit.embed.open",
    "EmbedPlan": "edgekit.embed.types",
    "Embedder": "edgekit.embed.embedder",
    "Limits": "edgekit.engines.native.file",
    "Mode": "edgekit.embed.types",
    "Pooling": "edgekit.engines.native.families",
    "open_embedder": "edgekit.embed.open",
    "plan_embedder": "edgekit.embed.open",
}
_EXTRA = frozenset({"numpy", "tokenizers"})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        from edgekit.errors import MissingExtraError

        raise MissingExtraError(
            f"the embedder needs {error.name}: pip install 'edgekit-models[embed]'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
