"""What the first range of a file decides is what its whole header says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.recorded import engine_models
from tests.thoroughness import sampled
from tests.unit.plan.machines import cards, cpu

from edgekit.bill.types import Task
from edgekit.bill.verdict import Verdict
from edgekit.errors import EdgekitError
from edgekit.machine.types import Machine
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.plan.verdict import is_decided, judge

MODELS = [
    "llama-3.1-8b",
    "gemma-3-4b",
    "qwen3-30b-a3b",
    "phi-3-mini-4k",
    "qwen2.5-0.5b",
    "lfm2-1.2b",
]
MACHINES = [cpu(4), cpu(8), cpu(16), cpu(64), cards(8), cards(24), cards(80)]


def keys_alone(model: Model) -> Model:
    """As if reading had stopped before the tensor directory."""
    header = replace(model.header, tensors=None, tensor_bytes=None, header_bytes=None)
    return Model(header=header, geometry=read_geometry(header))


def asked(model: Model, machine: Machine) -> tuple[Task, Verdict]:
    question = Task(model=model, engine="llama.cpp", machine=machine)
    return question, judge(question)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_decided_by_keys_alone_is_right(name: str) -> None:
    whole = engine_models()[name, "Q4_K_M"]
    light, decided = keys_alone(whole), 0
    for machine in sampled(MACHINES, each=2, turn=MODELS.index(name)):
        try:
            question, quick = asked(light, machine)
        except EdgekitError:
            continue  # then the directory is read
        _, exact = asked(whole, machine)
        if is_decided(question, quick, loads_only=True):
            assert quick.can_load == exact.can_load
        if is_decided(question, quick):
            decided += 1
            assert (quick.status, quick.context_tokens) == (exact.status, exact.context_tokens)
            assert (quick.max_context, quick.way.because) == (exact.max_context, exact.way.because)
            assert quick.required_bytes == pytest.approx(exact.required_bytes, rel=0.05)
    assert decided
