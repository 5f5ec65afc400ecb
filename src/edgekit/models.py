"""The public API: will this model run on my machine?

    from edgekit.models import model_preflight

    result = model_preflight("unsloth/gemma-3-27b-it-GGUF:Q4_K_M", "llama.cpp")
    print(result.status.name, f"{result.utilization:.0%}", result.max_context)

Seven names and no logic: that is in `edgekit.app`. What they need is imported on first use, so that importing this
module is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from edgekit.bill.types import MemoryEstimate
    from edgekit.bill.verdict import PreflightResult
    from edgekit.errors import RemoteInspectError
    from edgekit.machine.types import Machine
    from edgekit.model.inspect import ModelMetadata
    from edgekit.sources.types import Reach

    ModelId = str | os.PathLike[str]

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
    "ModelMetadata": "edgekit.model.inspect",
    "PreflightResult": "edgekit.bill.verdict",
    "RemoteInspectError": "edgekit.errors",
}


def model_preflight(
    model_id: ModelId,
    engine: str = "auto",
    *,
    context: int | None = None,
    sequences: int | None = None,
    users: int | None = None,
    job: tuple[int, int] | None = None,
    quant: str | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    ram: str | None = None,
    vram: str | None = None,
    machine: Machine | None = None,
    min_context: int | None = None,
    window_budget_bytes: int | None = None,
    max_use: float | None = None,
    reserve: int | None = None,
    allow_download: bool = True,
    exact: bool = False,
    reach: Reach | None = None,
) -> PreflightResult:
    """Whether a model fits, how long a context, and why.

    `model_id` is a path, a hub id (`org/name:Q4_K_M`), an address or a name, also one of the catalog (`qwen3-8b`);
    `engine` llama.cpp, vllm, mlx, stream (the built-in one) or auto. Without `context` the default window is judged; a
    `job` (prompt, new tokens) sizes it for known work. `users` have a context of their own each, `sequences` share
    one. `quant` is the quantisation of the weights: "Q8_0", "4bit", "fp8". `options` are the engine's own, by its
    names: `{"type_k": "q8_0", "n_gpu_layers": 20}`. `device`, `ram` and `vram` describe another machine than this
    one: "RTX 4090", "m3-max-64", "32G", "24G,24G". `max_use=0.85` refuses what needs more than that share of the usable
    memory; `reserve` replaces the memory that is left free (bytes, of every card and of the RAM).

    Of a GGUF on the hub the first range is read, and its tensor directory where that does not decide the verdict;
    `exact=True` always reads it, for a bill to the byte. A note of the estimate says where tensors were not checked.

    A name that is found nowhere and states a size and a quantisation ("Llama-13B-Q5_K_M") is judged by these alone:
    every line of its estimate is ASSUMED.

    A hub model that cannot be inspected by ranges is downloaded, with a log line and a progress bar, and inspected in
    the hub's cache; with `allow_download=False` RemoteInspectError is raised instead. "Does not fit" is a result, not
    an exception.

    >>> result = model_preflight("sample:gemma-3-27b", "llama.cpp", device="RTX 4090", ram="64G")
    >>> result.status.name, result.max_context
    ('WARNING', 59136)
    """
    from edgekit.app.check import verdict
    from edgekit.formats.types import Depth
    from edgekit.request import Request, Session, check_reference
    from edgekit.sources.types import Reach

    check_reference(model_id)
    request = Request.from_kwargs(
        engine,
        options=options,
        quant=quant,
        device=device,
        ram=ram,
        vram=vram,
        machine=machine,
        job=job,
        max_use=max_use,
        reserve=reserve,
        context=context,
        sequences=sequences,
        users=users,
        min_context=min_context,
        window_budget_bytes=window_budget_bytes,
    )
    confirm = (lambda _: True) if allow_download else None
    session = Session(reach=reach or Reach(), confirm=confirm)
    depth = Depth.TENSORS if exact else Depth.ARCHITECTURE
    return verdict(model_id, request, session, depth=depth)


def can_load(
    model_id: ModelId,
    engine: str = "auto",
    *,
    context: int | None = None,
    quant: str | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    ram: str | None = None,
    vram: str | None = None,
    machine: Machine | None = None,
    min_context: int | None = None,
    max_use: float | None = None,
    reserve: int | None = None,
    reach: Reach | None = None,
) -> bool:
    """Whether the engine would load it there: `model_preflight(...).can_load`, with less reading.

    Quick, and never downloads: RemoteInspectError where the header cannot be read. The first range of a remote file
    decides where its bounds do not matter; otherwise the whole header is read. False also where the machine has no
    hardware for the engine, or the engine refuses the model.

    >>> can_load("sample:gemma-3-27b", "llama.cpp", ram="8G")
    False
    """
    from edgekit.app.check import verdict
    from edgekit.errors import HardwareError, RefusedError
    from edgekit.formats.types import Depth
    from edgekit.request import Request, Session, check_reference
    from edgekit.sources.types import Reach

    check_reference(model_id)
    request = Request.from_kwargs(
        engine,
        options=options,
        quant=quant,
        device=device,
        ram=ram,
        vram=vram,
        machine=machine,
        max_use=max_use,
        reserve=reserve,
        context=context,
        min_context=min_context,
    )
    session = Session(reach=reach or Reach())
    try:
        return verdict(
            model_id, request, session, depth=Depth.ARCHITECTURE, loads_only=True
        ).can_load
    except (HardwareError, RefusedError):
        return False


def inspect_model_remote(
    model_id: ModelId, engine: str = "auto", *, reach: Reach | None = None
) -> ModelMetadata:
    """What a model is, by ranges of its files alone. RemoteInspectError if they cannot be read.

    Nothing is downloaded but headers. A path is read in place. `engine` is checked, and changes nothing: a header says
    the same to all of them.

    >>> inspect_model_remote("sample:gemma-3-27b").num_kv_heads
    16
    """
    from edgekit.app.inspect import metadata
    from edgekit.request import Request, Session, check_reference
    from edgekit.sources.types import Reach

    check_reference(model_id)
    Request.from_kwargs(engine)
    return metadata(model_id, Session(reach=reach or Reach()))


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
