"""The public API: will this model run on my machine?

    from edgekit.models import model_preflight

    result = model_preflight("unsloth/gemma-3-27b-it-GGUF:Q4_K_M", "llama.cpp")
    print(result.status.name, f"{result.utilization:.0%}", result.max_context)

Seven names, each imported at its first use, so that importing this module is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.app.preflight import can_load, inspect_model_remote, model_preflight
    from edgekit.bill.types import MemoryEstimate, PreflightResult
    from edgekit.errors import RemoteInspectError
    from edgekit.model.inspect import ModelMetadata

__all__ = [
    "MemoryEstimate",
    "ModelMetadata",
    "PreflightResult",
    "RemoteInspectError",
    "can_load",
    "inspect_model_remote",
    "model_preflight",
]

_MODULES = {
    "MemoryEstimate": "edgekit.bill.types",
    "ModelMetadata": "edgekit.model.inspect",
    "PreflightResult": "edgekit.bill.types",
    "RemoteInspectError": "edgekit.errors",
    "can_load": "edgekit.app.preflight",
    "inspect_model_remote": "edgekit.app.preflight",
    "model_preflight": "edgekit.app.preflight",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
