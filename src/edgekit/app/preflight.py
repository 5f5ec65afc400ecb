"""The functions of `edgekit.models`: will this model run on my machine, and what is it?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.app.check import judge_model
from edgekit.app.estimate import task_of
from edgekit.app.open import answer_with_fallback, open_named
from edgekit.bill.types import PreflightResult, Verdict
from edgekit.engines import engine_named, engine_names
from edgekit.errors import (
    CancelledError,
    EdgekitError,
    HardwareError,
    RefusedError,
    RemoteInspectError,
    UsageError,
)
from edgekit.formats.types import Depth
from edgekit.machine.types import Machine
from edgekit.model import OpenModel
from edgekit.model.inspect import ModelMetadata, read_metadata
from edgekit.plan.choice import judge
from edgekit.request import AUTO, Request, RowOptions, Session, Values
from edgekit.sources.types import Reach

ModelId = str | os.PathLike[str]


def model_preflight(
    model_id: ModelId,
    engine: str = AUTO,
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
    cpu: str | None = None,
    machine: Machine | None = None,
    min_context: int | None = None,
    min_speed: float | None = None,
    prompt_tokens: int | None = None,
    window_budget_bytes: int | None = None,
    max_use: float | None = None,
    reserve: int | None = None,
    allow_download: bool = True,
    exact: bool = False,
    reach: Reach | None = None,
) -> PreflightResult:
    """Whether a model fits, with how long a context, and why.

    `model_id` is a path, a hub id (`org/name:Q4_K_M`), an address or a name, for example of the catalog (`qwen3-8b`).
    `engine` is llama.cpp, vllm, mlx, stream (the built-in one) or auto. Without `context` the default context is
    judged; a `job` (prompt tokens, new tokens) sizes it for known work. Each of the `users` has a separate context;
    `sequences` share one. `quant` is the quantisation of the weights: "Q8_0", "4bit", "fp8". `options` are the
    engine's, by its names: `{"type_k": "q8_0", "n_gpu_layers": 20}`. `device`, `ram`, `vram` and `cpu` describe
    another machine: "RTX 4090", "m3-max-64", "32G DDR5-6000", "24G,24G", "Ryzen 7 7700". `max_use=0.85` fails a model
    that needs more than 85 % of the usable memory; `reserve` is the memory to leave free on every card and in RAM, in
    bytes. Settings slower than `min_speed` tokens per second are only chosen if nothing is faster;
    `result.is_fast_enough` says so. The time to the first token is that of a prompt of `prompt_tokens` (default 1,000).

    Of a GGUF file on the hub, the first range is read, and the tensor directory only if the verdict depends on it;
    `exact=True` always reads it, for an estimate to the byte. A note says if tensors were not checked.

    A name that is not found but states a size and a quantisation ("Llama-13B-Q5_K_M") is judged by these alone: every
    line of its estimate is ASSUMED.

    A hub model that cannot be inspected by ranges is downloaded to the hub's cache, with a log line and a progress
    bar; with `allow_download=False`, RemoteInspectError is raised instead. "Does not fit" is a result, not an
    exception.

    >>> result = model_preflight("sample:gemma-3-27b", "llama.cpp", device="RTX 4090", ram="64G")
    >>> result.status.name, result.max_context
    ('WARNING', 59136)
    """
    _check_reference(model_id)
    request = Request.from_kwargs(
        engine,
        options=options,
        quant=quant,
        device=device,
        ram=ram,
        vram=vram,
        cpu=cpu,
        machine=machine,
        job=job,
        max_use=max_use,
        reserve=reserve,
        context=context,
        sequences=sequences,
        users=users,
        min_context=min_context,
        min_speed=min_speed,
        prompt_tokens=prompt_tokens,
        window_budget_bytes=window_budget_bytes,
    )
    confirm = (lambda _: True) if allow_download else None
    session = Session(reach=reach or Reach(), confirm=confirm)
    return _verdict(model_id, request, session, exact=exact)


def can_load(
    model_id: ModelId,
    engine: str = AUTO,
    *,
    context: int | None = None,
    quant: str | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    ram: str | None = None,
    vram: str | None = None,
    cpu: str | None = None,
    machine: Machine | None = None,
    min_context: int | None = None,
    max_use: float | None = None,
    reserve: int | None = None,
    reach: Reach | None = None,
) -> bool:
    """Whether the engine would load the model: `model_preflight(...).can_load`, but it reads less.

    Never downloads: raises RemoteInspectError if the header cannot be read. The whole header of a remote file is read
    only if the first range does not decide the answer. False also if the machine has no hardware for the engine, or if
    the engine refuses the model.

    >>> can_load("sample:gemma-3-27b", "llama.cpp", ram="8G")
    False
    """
    _check_reference(model_id)
    request = Request.from_kwargs(
        engine,
        options=options,
        quant=quant,
        device=device,
        ram=ram,
        vram=vram,
        cpu=cpu,
        machine=machine,
        max_use=max_use,
        reserve=reserve,
        context=context,
        min_context=min_context,
    )
    session = Session(reach=reach or Reach())
    try:
        return _verdict(model_id, request, session, loads_only=True).can_load
    except (HardwareError, RefusedError):
        return False


def inspect_model_remote(
    model_id: ModelId, engine: str = AUTO, *, reach: Reach | None = None
) -> ModelMetadata:
    """What a model is, from ranges of its files. Raises RemoteInspectError if they cannot be read.

    Only headers are downloaded; a local file is read in place. `engine` must be valid but has no effect.

    >>> inspect_model_remote("sample:gemma-3-27b").num_kv_heads
    16
    """
    _check_reference(model_id)
    Request.from_kwargs(engine)
    try:
        resolved = open_named(model_id, Session(reach=reach or Reach()))
        model = resolved.opened(resolved.engine()).model
    except (RemoteInspectError, CancelledError):
        raise
    except EdgekitError as error:
        raise RemoteInspectError(str(error)) from error
    return read_metadata(model.header, model.geometry)


def _check_reference(model_id: object) -> None:
    if not isinstance(model_id, str | os.PathLike):
        raise UsageError(
            f"{model_id!r:.60} is not a model: give a path, a Hugging Face ID or a URL"
        )


def _verdict(
    reference: ModelId,
    request: Request,
    session: Session,
    *,
    exact: bool = False,
    loads_only: bool = False,
) -> Verdict:
    """The verdict for the requested engine, or else for the first that has the requested options. Raises EdgekitError.

    `loads_only`: the caller only uses `can_load`.
    """
    machine = request.find_machine()
    request = replace(request, machine=machine)
    depth = Depth.TENSORS if exact else Depth.ARCHITECTURE
    resolved = open_named(
        reference, session, depth=depth, assume=not loads_only, quant=request.quant
    )

    def judge_on(engine: str) -> Verdict:
        if resolved.assumed is not None:
            stand_in = OpenModel(label=resolved.name, model=resolved.assumed.stand_in)
            task, _ = task_of(resolved, stand_in, engine, request, session)
            return judge(replace(task, bill=resolved.assumed.bill(engine)))
        opened = resolved.opened(engine)
        return judge_model(
            opened, engine, request, session, resolved=resolved, loads_only=loads_only
        )[-1]

    if request.engine is not None:
        return judge_on(request.engine)
    files_engine = resolved.engine(machine)
    options = {name: value for name, value in (request.options or {}).items() if name != "quant"}
    if not _takes_options(files_engine, options):
        # as on the command line: the first engine that has these options
        able_engines = (name for name in engine_names() if _takes_options(name, options))
        return judge_on(next(able_engines, files_engine))
    result, note = answer_with_fallback(resolved, machine, judge_on, lambda result: result)
    bill = result.estimate
    return replace(result, estimate=replace(bill, notes=(note, *bill.notes))) if note else result


def _takes_options(engine: str, options: Values) -> bool:
    """Whether the engine has all of these options."""
    read = RowOptions(options)
    try:
        engine_named(engine).read_keywords(read)
        read.require_known(engine)
    except UsageError:
        return False
    return True
