"""The public API: will this model run on my machine?

    from edgekit.models import model_preflight

    result = model_preflight("unsloth/gemma-3-27b-it-GGUF:Q4_K_M", "llama.cpp")
    print(result.status.name, f"{result.utilization:.0%}", result.max_context)

Seven names and no logic: that is in `edgekit.preflight`. They are imported on first use, so that importing this module
is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.bill.types import MemoryEstimate
    from edgekit.bill.verdict import PreflightResult
    from edgekit.errors import RemoteInspectError
    from edgekit.model.metadata import ModelMetadata
    from edgekit.preflight import can_load, inspect_model_remote, model_preflight

__all__ = [
    "MemoryEstimate",
    "ModelMetadata",
    "PreflightResult",
    "RemoteInspectError",
    "can_load",
    "inspect_model_remote",
    "model_preflight",
]

_PLACES = {
    "MemoryEstimate": "edgekit.bill.types",
    "ModelMetadata": "edgekit.model.metadata",
    "PreflightResult": "edgekit.bill.verdict",
    "RemoteInspectError": "edgekit.errors",
    "can_load": "edgekit.preflight",
    "inspect_model_remote": "edgekit.preflight",
    "model_preflight": "edgekit.preflight",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
