"""Plans with real verdicts on recorded models."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from tests.recorded import config_header
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import gguf
from tests.unit.report.verdicts import QWEN

from edgekit.bill.types import Drafter, Load, Speed, Start, Task, Variant
from edgekit.engines import engine_named
from edgekit.engines.llamacpp.choices import at_mixes
from edgekit.machine.types import Machine, System
from edgekit.machine.what_if import requested_machine
from edgekit.model import open_model, read_geometry
from edgekit.model.types import Model
from edgekit.plan.choice import judge
from edgekit.plan.plan import Plan, make_plan
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin

__all__ = ["cards", "cpu", "gguf", "mac", "planned", "qwen"]


def qwen(**more: Any) -> Model:
    header = config_header({**QWEN, **more})
    return Model(header=header, geometry=read_geometry(header))


def model_files(label: str, origin: Origin = Origin.LOCAL, **more: Any) -> ModelFiles:
    file = ModelFile(name=label.rsplit("/", maxsplit=1)[-1], open=no_file, size_bytes=1)
    defaults: dict[str, Any] = {
        "reference": label,
        "container": Container.GGUF,
        "weights": (file,),
    }
    return ModelFiles(label=label, origin=origin, **{**defaults, **more})


def no_file() -> Any:
    msg = "a ready command opens no file"
    raise AssertionError(msg)


def planned(
    model: Model,
    machine: Machine,
    *,
    engine: str = "llama.cpp",
    load: Load | None = None,
    reference: str = "./model.gguf",
    drafter: Drafter | None = None,
    nodes: int = 1,
    fixed_flags: tuple[str, ...] = (),
    decisions: tuple[Any, ...] = (),
    label: str = "org/Some-Model",
    **setup: Any,
) -> Plan:
    """The plan of a task, without decisions of its own."""
    start = Start(
        setup=replace(engine_named(engine).default_setup(), **setup),
        fixed_flags=frozenset(fixed_flags),
    )
    load = load or Load(context_tokens=32_768)
    given = Task(model=model, engine=engine, machine=machine, load=load, start=start, nodes=nodes)
    variant = Variant(name="Q4_K_M", model=model, accuracy=4, reference=reference)
    verdict = judge(given)
    load = replace(load, context_tokens=verdict.context_tokens)
    result = replace(verdict, variant=variant, load=load)
    task = replace(given, label=label, variants=(variant,), load=load, start=Start())
    return Plan(
        task=task,
        variant=variant,
        result=result,
        decisions=decisions,
        drafter=drafter,
    )


def at_speed(plan: Plan, speed: Speed | None, **more: Any) -> Plan:
    """The plan with this speed in its verdict."""
    return replace(plan, result=replace(plan.result, speed=speed), **more)


GEMMA, QWEN_MOE = "sample:gemma-3-27b", "sample:qwen3-30b-a3b"
# An arbitrary speed: the report does not depend on how it was found.
SPEED = Speed(decode=(24.6, 52.9), prefill=(940.0, 3721.0), because="a token reads 15.40 GiB")


@cache
def sample_plan(name: str, device: str, ram: str, context: int | None = None) -> Plan:
    model = open_model(name).model
    machine = requested_machine(devices=(device,) if device else (), ram=ram)
    task = Task(
        label=name,
        model=model,
        variants=at_mixes(model),
        engine="llama.cpp",
        machine=replace(machine, system=System.LINUX),
        load=Load(context_tokens=context),
    )
    plan = make_plan(task)
    if not plan.fits:
        return plan
    return at_speed(plan, SPEED, steady_tokens_per_s=36.0)


def one_card() -> Plan:
    return sample_plan(GEMMA, "RTX 4090", "64G", 32768)


def experts_in_ram() -> Plan:
    return sample_plan(QWEN_MOE, "RTX 3060", "64G")


def nothing_fits() -> Plan:
    return sample_plan(GEMMA, "", "8G")


def two_cards() -> Plan:
    return sample_plan(QWEN_MOE, "RTX 4090, RTX 3060", "64G")
