"""Measured speeds -> what EdgeKit is asked for each: a machine, a model and a placement.

speed_rows.py reads the rows. A row with `record` is of `edgekit calibrate --share`, which decodes after the prompt, so
that the prompt is in the context.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from edgekit.app.open import ResolvedModel, open_named
from edgekit.bill.types import Load, MemoryEstimate, Placement, Setup, Task, cache_type
from edgekit.engines import engine_named
from edgekit.engines.llamacpp.run.generated import generated_model, is_shape_name, read_shape
from edgekit.engines.llamacpp.types import ALL_LAYERS, Backend, DeviceSlot, LlamaCppSetup
from edgekit.engines.mlx.quantization import PLAIN, read_quantize
from edgekit.engines.mlx.setups import MlxSetup, read_quant
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import EdgekitError
from edgekit.machine.types import HostMemory, Machine, PoolKind, System
from edgekit.machine.what_if import what_if_machine
from edgekit.model.types import Model
from edgekit.request import Session
from edgekit.sources.types import Reach
from edgekit.units import GIB

GB = 10**9
OFFLINE = Session(reach=Reach(network=False))
BACKENDS = {"rocm": "hip"}  # EdgeKit's name
ENGINES = {"mlx": "mlx", "vllm": "vllm"}  # others are llama.cpp or built on it
UNKNOWN_GEN_TOKENS = 128
UNKNOWN_RAM_GIB = 64
END_TO_END_PROMPT = 50  # tokens of a prompt whose time is in the measured speed, if unknown
MAX_TOKENS_PER_S = 1e7
_SHARD = re.compile(r"(?:-\d{5}-of-\d{5})?(?:\.gguf)?$")
_QUANT = re.compile(r"[-._](?:UD-)?(?:I?Q\d\w*|BF16|F16|MXFP4\w*|NVFP4|GGUF|AWQ)$", re.IGNORECASE)
_MIXES = {"MXFP4": "MXFP4_MOE", "Q4_K_XL": "UD-Q4_K_XL"}


class UnknownError(Exception):
    """A point that cannot be expressed, because a part of it is unknown: its model, device or quantisation."""

    def __init__(self, part: str, name: str) -> None:
        super().__init__(f"{part} {name}")
        self.part = part


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured speed, of decoding or of a prompt, with everything that the expected speed needs."""

    row: dict[str, Any]
    is_prompt: bool
    measured: float
    task: Task
    placement: Placement
    bill: MemoryEstimate
    filled: int  # tokens in the context: on average while decoding, before the prompt otherwise
    prompt_tokens: int
    new_tokens: int

    @property
    def machine(self) -> str:
        """The name of the machine, for leaving one out."""
        return str(self.row["hardware"])

    @property
    def users(self) -> int:
        return int(self.row.get("users") or 1)

    @property
    def is_end_to_end(self) -> bool:
        """Whether the time of the prompt is in the measured speed."""
        return bool(self.row.get("e2e"))


def points_of(row: dict[str, Any]) -> Iterator[Point]:
    """The points of a row: one for decoding, one for the prompt. Raises UnknownError."""
    machine = machine_of(row)
    engine = ENGINES.get(str(row.get("engine")), "llama.cpp")
    prompt_tokens = int(row.get("prompt_tokens") or 0)
    new_tokens = int(row.get("gen_tokens") or UNKNOWN_GEN_TOKENS)
    depth = int(row.get("context_depth") or 0)
    for is_prompt, key in ((False, "tg_tok_s"), (True, "pp_tok_s")):
        measured = row.get(key)
        if not measured:
            continue
        if isinstance(measured, bool) or not 0 < float(measured) < MAX_TOKENS_PER_S:
            raise ValueError(f"{key} is not a speed: {measured!r}")
        before = prompt_tokens if row.get("record") else 0
        filled = depth if is_prompt else depth + before + new_tokens // 2
        if is_prompt and engine == "mlx":
            filled = 0  # the depth of mlx_lm.benchmark is its prompt
        if is_prompt:
            prompt_tokens = prompt_tokens or 512
        task, placement, bill = _priced(row, engine, machine, filled + max(prompt_tokens, 512))
        yield Point(
            row=row,
            is_prompt=is_prompt,
            measured=float(measured),
            task=task,
            placement=placement,
            bill=bill,
            filled=filled,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
        )


# -- machines --------------------------------------------------------------------------------


def machine_of(row: dict[str, Any]) -> Machine:
    """The machine of a row. Raises UnknownError if its device is not in the table."""
    machine = _described(
        str(row["hardware"]), str(row.get("backend")), row.get("vram_gb"), row.get("ram_gb"),
        int(row.get("gpu_count") or 1),
    )  # fmt: skip
    host = machine.host or HostMemory(total_bytes=1024 * GIB, free_bytes=1024 * GIB)
    bandwidth = row.get("host_gb_s")
    if bandwidth and not any(card.unified for card in machine.devices):
        host = replace(host, bandwidth_bytes_per_s=int(float(bandwidth) * GB))
    instructions = frozenset(str(row.get("instructions") or "").split()) or machine.instructions
    cores = row.get("cores") or machine.cores
    return replace(machine, host=host, cores=cores, instructions=instructions)


@cache
def _described(
    name: str, backend: str, vram_gb: float | None, ram_gb: float | None, count: int
) -> Machine:
    ram = None if ram_gb is None else f"{max(1, round(ram_gb))}G"
    if backend == "cpu":
        return _processor(name, ram or f"{UNKNOWN_RAM_GIB}G")
    for device in _device_names(name, vram_gb, ram_gb, count):
        try:
            return what_if_machine(devices=(f"{count}x {device}",) if count > 1 else (device,))
        except EdgekitError:
            continue
    raise UnknownError("device", name)


def _device_names(
    name: str, vram_gb: float | None, ram_gb: float | None, count: int
) -> Iterator[str]:
    """The name, and with the sizes that it may come in: a size that is stated, else any, which differ in bandwidth."""
    yield name
    for stated in (ram_gb, None if vram_gb is None else vram_gb / count):
        if stated is not None:
            near = sorted(_SIZES, key=lambda size: abs(size - stated))
            yield from (f"{name} {size}GB" for size in near[:3])
    yield from (f"{name} {size}GB" for size in sorted(_SIZES, reverse=True))


_SOCKETS = re.compile(r"(\d) ?x (.+)")
_SIZES = (4, 6, 8, 10, 11, 12, 16, 18, 20, 24, 32, 36, 40, 48, 64, 80, 96, 128, 141, 192, 256, 512)


def _processor(name: str, ram: str) -> Machine:
    """A machine without a GPU: a processor of the table, or one that only its name is known of."""
    counted = _SOCKETS.fullmatch(name)
    sockets, plain = (int(counted[1]), counted[2]) if counted else (1, name)
    for part in _processor_names(plain):
        with suppress(EdgekitError):
            machine = what_if_machine(ram=ram, cpu=part)
            break
        with suppress(EdgekitError):  # the processor of a complete machine, such as a Mac
            machine = replace(what_if_machine(devices=(part,)), devices=())
            break
    else:
        machine = what_if_machine(ram=ram)
    host = machine.host
    if sockets > 1 and host is not None and host.bandwidth_bytes_per_s is not None:
        host = replace(host, bandwidth_bytes_per_s=sockets * host.bandwidth_bytes_per_s)
    cores = None if machine.cores is None else sockets * machine.cores
    return replace(machine, system=System.LINUX, host=host, cores=cores)


def _processor_names(name: str) -> Iterator[str]:
    """'Radxa Orion O6 (CIX P1)' -> with and without what is in parentheses or after a comma, and that alone."""
    outside, _, inside = name.partition("(")
    yield from dict.fromkeys(
        part.removesuffix(" CPU").strip()
        for part in (
            name, name.partition(",")[0], outside, inside.rstrip(")"), inside.partition(",")[0],
            *(f"{outside.removesuffix(' CPU').strip()} {size}GB" for size in _SIZES),
        )
        if part.strip()
    )  # fmt: skip


# -- models ----------------------------------------------------------------------------------


@cache
def model_named(model: str | None, file: str | None) -> ResolvedModel:
    """The model that a row names. Raises UnknownError."""
    for name in _names(model, file):
        try:
            resolved = open_named(name, OFFLINE)
        except EdgekitError:
            continue
        if resolved.assumed is None:
            return resolved
    raise UnknownError("model", str(model or file))


def _names(model: str | None, file: str | None) -> Iterator[str]:
    if model:
        plain = model.removeprefix("config:").removeprefix("header:")
        yield plain
        yield plain.replace("__", "/")
    if file:
        stem = _QUANT.sub("", _SHARD.sub("", file))
        yield stem
        organisation, underscore, rest = stem.partition("_")
        if underscore:
            yield rest
            yield f"{organisation}/{rest}"


# -- placements ------------------------------------------------------------------------------


def _priced(
    row: dict[str, Any], engine: str, machine: Machine, context: int
) -> tuple[Task, Placement, MemoryEstimate]:
    """The task, the placement and the bill of a row. Raises UnknownError if the engine refuses the model."""
    quant, kv = str(row["quant"]), row.get("kv_type")
    name, file = row.get("model"), row.get("file")
    resolved = None if is_shape_name(str(name)) else model_named(name, file)
    users = int(row.get("users") or 1)
    load = Load(
        context_tokens=context * users,
        sequences=users,
        microbatch_tokens=row.get("ubatch") if engine == "llama.cpp" else None,
        batch_tokens=max(2048, row.get("ubatch") or 0) if engine == "llama.cpp" else None,
    )
    if engine == "llama.cpp" and kv not in {None, "f16"}:
        load = replace(load, cache_k=cache_type(kv), cache_v=cache_type(kv), flash_attention=True)
    try:
        model, setup = _model_and_setup(row, engine, resolved, max(1, len(machine.devices)))
        task = Task(model=model, engine=engine, machine=machine, load=load)
        placement = Placement(setup=setup, budgets=(), because="", cards=machine.devices)
        if row.get("placement") == "fit":
            return _fitted(task, placement, row)
        return task, placement, engine_named(engine).estimate(model, load, setup)
    except EdgekitError as error:
        raise UnknownError("set-up", f"{name or file} {quant} on {engine}: {error}") from error


def _model_and_setup(
    row: dict[str, Any], engine: str, resolved: ResolvedModel | None, count: int
) -> tuple[Model, Setup]:
    """The model as the engine loads it, and how it runs on `count` devices. Raises EdgekitError. Without a resolved
    model it is a generated one.
    """
    quant = str(row["quant"])
    if resolved is None:
        shape = read_shape(str(row["model"]), quant)
        return generated_model(shape), _llamacpp_setup(row, count, None)
    if engine == "llama.cpp":
        model, mix = _file_model(resolved, quant)
        return model, _llamacpp_setup(row, count, mix)
    if engine == "vllm":
        opened = replace(resolved, quant=_vllm_quant(quant)).at_checkpoint(engine).as_file(engine)
        return opened.model, VllmSetup(tensor_parallel_size=count)
    bits, _, group = quant.partition("bit")
    size = int(group.removeprefix("-g")) if group else None
    name = read_quant(f"{bits}bit") if bits.isdigit() else None
    packed = PLAIN if name is None else read_quantize(name, group_size=size)
    model = resolved.at_checkpoint(engine).as_file(engine).model
    return model, MlxSetup(quantize=None if quant == "MXFP4" else packed)


def _vllm_quant(quant: str) -> str | None:
    return None if quant in {"BF16", "F16"} else {"int4": "AWQ"}.get(quant, quant)


@cache
def _opened(resolved: ResolvedModel, quant: str) -> tuple[Model, str | None]:
    opened = replace(resolved, quant=quant).as_file("llama.cpp")
    return opened.model, opened.mix


def _file_model(resolved: ResolvedModel, quant: str) -> tuple[Model, str | None]:
    """The model at this quantisation, or at the nearest one that EdgeKit can make."""
    first = _MIXES.get(quant, quant)
    for name in (first, first.removeprefix("UD-"), first.removeprefix("UD-").replace("_XL", "_M")):
        try:
            return _opened(resolved, name)
        except EdgekitError:
            continue
    if quant == "MXFP4":
        return _opened(resolved, "MXFP4_MOE")
    raise UnknownError("quantisation", quant)


def _llamacpp_setup(row: dict[str, Any], count: int, mix: str | None) -> LlamaCppSetup:
    name = str(row["backend"])
    try:
        backend = Backend(BACKENDS.get(name, name))
    except ValueError:
        backend = Backend.VULKAN
    ngl, ncmoe = row.get("ngl"), row.get("ncmoe")
    return LlamaCppSetup(
        backend=backend,
        devices=(DeviceSlot(),) * count,
        n_gpu_layers=ALL_LAYERS if ngl is None else int(ngl),
        n_cpu_moe=0 if ncmoe is None else int(ncmoe),
        mix=mix,
    )


def _fitted(
    task: Task, placement: Placement, row: dict[str, Any]
) -> tuple[Task, Placement, MemoryEstimate]:
    """The placement with as many layers on the devices as fit."""
    setup, most = LlamaCppSetup.of(placement.setup), float(row.get("vram_gb") or 0) * GIB
    estimate = engine_named(task.engine).estimate
    for layers in (ALL_LAYERS, *range(len(task.model.geometry.layers), -1, -1)):
        smaller = replace(setup, n_gpu_layers=layers)
        bill = estimate(task.model, task.load, smaller)
        used = sum(line.size_bytes for line in bill.lines if line.pool.kind is PoolKind.DEVICE)
        if used <= most:
            break
    return task, replace(placement, setup=smaller), bill
