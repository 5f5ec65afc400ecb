"""A name, an engine and a machine -> will it fit? The whole line in one screen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgekit.bill.task import Job, Start, Task
from edgekit.bill.types import Load
from edgekit.bill.verdict import Verdict
from edgekit.engines import engine_name, engine_named, engine_names
from edgekit.engines.quant_names import with_quant
from edgekit.engines.row_options import RowOptions
from edgekit.errors import (
    CancelledError,
    EdgekitError,
    HardwareError,
    HeaderError,
    RefusedError,
    RemoteInspectError,
    UnknownArchitectureError,
    UsageError,
)
from edgekit.formats.types import Depth
from edgekit.model.metadata import ModelMetadata, read_metadata
from edgekit.model.open import Opened, open_model
from edgekit.plan.tasks import reads_at_once
from edgekit.plan.users import for_users
from edgekit.plan.verdict import is_decided, judge, result_of
from edgekit.resolver import AUTO, ResolvedModel, automatic, choose_file, resolve_model

if TYPE_CHECKING:
    from edgekit.machine.types import Machine
    from edgekit.sources.types import Reach


TENSORS_NOT_CHECKED = (
    "tensors were not checked: the start of the file was enough to answer"
    " (--exact or exact=True reads the whole header)"
)

ModelId = str | os.PathLike[str]
_WHOLE = ("context", "sequences", "users", "min_context", "window_budget_bytes", "reserve")


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
    machine: Machine | None = None,
    min_context: int | None = None,
    window_budget_bytes: int | None = None,
    max_use: float | None = None,
    reserve: int | None = None,
    allow_download: bool = True,
    exact: bool = False,
    reach: Reach | None = None,
) -> Verdict:
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
    _check_kinds(model_id, engine, options)
    confirm = (lambda _: True) if allow_download else None
    depth = Depth.TENSORS if exact else Depth.ARCHITECTURE
    named = resolve_model(
        model_id,
        depth=depth,
        reach=reach,
        confirm=confirm,
        assume=True,
        quant=_quant(quant, options or {}),
    )
    here = _machine(machine, device, ram, vram)
    asked = PreflightArguments(
        context=context,
        sequences=sequences,
        users=users,
        job=_job(job),
        min_context=min_context,
        window_budget_bytes=window_budget_bytes,
        max_use=max_use,
        reserve=reserve,
    )
    return _judged(named, engine, here, options or {}, asked, reach=reach)


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
    _check_kinds(model_id, engine, options)
    here = _machine(machine, device, ram, vram)
    try:
        named = resolve_model(
            model_id,
            depth=Depth.ARCHITECTURE,
            reach=reach,
            quant=_quant(quant, options or {}),
        )
        asked = PreflightArguments(
            context=context, min_context=min_context, max_use=max_use, reserve=reserve
        )
        return _judged(
            named, engine, here, options or {}, asked, reach=reach, loads_only=True
        ).can_load
    except (HardwareError, RefusedError):
        return False


def inspect_model_remote(
    model_id: ModelId, engine: str = AUTO, *, reach: Reach | None = None
) -> ModelMetadata:
    """What a model is, by ranges of its files alone. RemoteInspectError for whatever stands in the way.

    Nothing is downloaded but headers. A path is read in place. `engine` is checked, and changes nothing: a header says
    the same to all of them.

    >>> inspect_model_remote("sample:gemma-3-27b").num_kv_heads
    16
    """
    _check_kinds(model_id, engine, None)
    if engine.lower() != AUTO:
        engine_name(engine)
    try:
        named = resolve_model(model_id, reach=reach)
        model = named.opened(named.first_engine).model
    except (RemoteInspectError, CancelledError):
        raise
    except EdgekitError as error:
        raise RemoteInspectError(str(error)) from error
    return read_metadata(model.header, model.geometry)


def _quant(quant: str | None, options: Mapping[str, Any]) -> str | None:
    found = options.get("quant") if quant is None else quant
    if not isinstance(found, str | None):
        raise UsageError(f"quant {found!r:.60} is not a name such as 'Q4_K_M'")
    return found


def _job(job: tuple[int, int] | None) -> Job | None:
    if job is None:
        return None
    try:
        prompt, new = job
    except (TypeError, ValueError) as error:
        raise UsageError(f"job {job!r:.60} is not (prompt tokens, new tokens)") from error
    _check_whole("prompt tokens", prompt)
    _check_whole("new tokens", new)
    return Job(prompt_tokens=prompt, new_tokens=new)


def _machine(
    machine: Machine | None, device: str | None, ram: str | None, vram: str | None
) -> Machine:
    named = {"device": device, "ram": ram, "vram": vram}
    for name, value in named.items():
        if not isinstance(value, str | None):
            raise UsageError(f"{name} {value!r:.60} is not a string such as 'RTX 4090' or '24G'")
    if machine is not None and any(value is not None for value in named.values()):
        raise UsageError("give either a machine or device, ram and vram, not both")
    if machine is not None:
        return machine
    from edgekit.machine import this_or_wished

    return this_or_wished(devices=() if device is None else (device,), ram=ram, vram=vram)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightArguments:
    """What a caller wants, whatever the engine."""

    context: int | None = None
    sequences: int | None = None
    users: int | None = None
    job: Job | None = None
    min_context: int | None = None
    window_budget_bytes: int | None = None
    max_use: float | None = None
    reserve: int | None = None  # bytes

    def __post_init__(self) -> None:
        for name in _WHOLE:
            _check_whole(name, getattr(self, name))
        if self.users is not None and self.sequences is not None:
            raise UsageError("users= and sequences= both say how many at a time: give one")
        share: object = self.max_use
        if share is not None and (isinstance(share, bool) or not isinstance(share, float | int)):
            raise UsageError(f"max_use {share!r:.60} is not a share such as 0.85")


def _check_kinds(model_id: object, engine: object, options: object) -> None:
    """Raises UsageError for what can be no model, engine or options."""
    if not isinstance(model_id, str | os.PathLike):
        raise UsageError(
            f"{model_id!r:.60} is not a model: give a path, a Hugging Face ID or a URL"
        )
    if not isinstance(engine, str):
        raise UsageError(f"engine {engine!r:.60} is not a name such as 'llama.cpp'")
    if not isinstance(options, Mapping | None):
        raise UsageError(f"options {options!r:.60} are not a mapping of names to values")


def _check_whole(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"{name} {value!r:.60} is not a whole number")


def _judged(
    named: ResolvedModel,
    engine: str,
    machine: Machine,
    options: Mapping[str, Any],
    asked: PreflightArguments,
    *,
    reach: Reach | None,
    loads_only: bool = False,
) -> Verdict:
    def by(name: str) -> Verdict:
        own = with_quant(name, options, named.quant)
        if named.assumed is not None:
            known = Opened(label=named.name, model=named.assumed.stand_in)
            question = _question(known, name, machine, own, asked, embeds=False)
            return judge(replace(question, bill=named.assumed.bill(name)))

        def ask(opened: Opened) -> Task:
            question = _question(opened, name, machine, own, asked, embeds=named.embeds)
            return replace(question, variants=named.variants(opened, name, question.start))

        return in_two_steps(named.opened(name), ask, reach=reach, loads_only=loads_only)[-1]

    if engine.lower() != AUTO:
        return by(engine_name(engine))
    own = named.engine(AUTO, machine)
    typed = {name: value for name, value in options.items() if name != "quant"}
    if not _takes(own, typed):  # as on the command line: the engine that has these options
        return by(next((name for name in engine_names() if _takes(name, typed)), own))
    found, note = automatic(named, machine, by, lambda result: result)
    bill = found.estimate
    return replace(found, estimate=replace(bill, notes=(note, *bill.notes))) if note else found


def in_two_steps(
    opened: Opened,
    ask: Callable[[Opened], Task],
    *,
    reach: Reach | None = None,
    loads_only: bool = False,
) -> tuple[Opened, Task, Verdict]:
    """The verdict, from the first range of a remote file where that decides it, else from its whole header.

    Where another file of the repository is chosen, the same is done with that one. `loads_only`: only `can_load`
    matters, and that can be said without a look at a better file.
    """
    if opened.whole is not None:
        with suppress(
            RefusedError, HeaderError, UnknownArchitectureError
        ):  # the keys alone leave something open
            question = ask(opened)
            result = judge(question)
            other = result.variant if result.can_load and not loads_only else None
            if other is not None and other.changes and other.reference:
                opened = open_model(other.reference, depth=Depth.ARCHITECTURE, reach=reach)
                question = ask(opened)
                result = judge(question)
            if is_decided(question, result, loads_only=loads_only):
                bill = result.estimate
                noted = replace(bill, notes=(*bill.notes, TENSORS_NOT_CHECKED))
                return opened, question, replace(result, estimate=noted)
        opened = opened if opened.whole is None else opened.whole()
    opened, question, choice = choose_file(opened, ask(opened), reach)
    return opened, question, result_of(choice)


def _question(
    opened: Opened,
    engine: str,
    machine: Machine,
    options: Mapping[str, Any],
    asked: PreflightArguments,
    *,
    embeds: bool,
) -> Task:
    load, setup = _read_options(engine, options) if options else (Load(), None)
    own: dict[str, Any] = {"context_tokens": asked.context, "sequences": asked.sequences}
    load = replace(load, **{name: value for name, value in own.items() if value is not None})
    start = Start(setup=setup, settled=frozenset(options))
    if embeds:
        start = engine_named(engine).embedding_start(start)
    return Task(
        model=opened.model,
        engine=engine,
        machine=machine,
        load=for_users(load, asked.users, engine, opened.model),
        start=start,
        job=asked.job,
        min_context=asked.min_context,
        in_one_batch=reads_at_once(opened.model, start.setup),
        window_budget_bytes=asked.window_budget_bytes,
        max_use=asked.max_use,
        reserve_bytes=asked.reserve,
    )


def _takes(engine: str, options: Mapping[str, Any]) -> bool:
    try:
        _read_options(engine, options)
    except UsageError:
        return False
    return True


def _read_options(engine: str, options: Mapping[str, Any]) -> tuple[Load, Any]:
    read = RowOptions(options)
    load, setup = engine_named(engine).read_keywords(read)
    read.require_known(engine)
    return load, setup
