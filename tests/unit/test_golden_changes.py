"""Small changes to the code must change a recorded answer.

Every change is made in a new process, because caches would keep its results.
"""

from __future__ import annotations

import multiprocessing
import pkgutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from tools.goldens import GROUPS, difference


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedChange:
    """The changed object, the change, a question whose answer depends on it, and words that the difference shows."""

    target: str
    change: Callable[[Any], Any]
    question: str
    shows: str = ""


def with_long_name_first(flags: tuple[Any, ...]) -> tuple[Any, ...]:
    """The flags of llama.cpp with --n-gpu-layers before -ngl: EdgeKit prints the first name of a flag."""
    return tuple(
        flag._replace(names=flag.names[::-1]) if "-ngl" in flag.names else flag for flag in flags
    )


CHANGES = {
    "one byte more for llama.cpp": PlantedChange(
        target="edgekit.engines.llamacpp.estimate.CUDA_CONTEXT_BYTES",
        change=lambda count: count + 1,
        question='edgekit check llama-3.1-8b --device "RTX 4060" --ram 32G -c 8k --json',
    ),
    "one byte more for MLX": PlantedChange(
        target="edgekit.engines.mlx.compute.PROCESS_BYTES",
        change=lambda count: count + 1,
        question="edgekit check qwen3-8b --engine mlx --device m2-16 -c 32k --kv-bits 8 --json",
    ),
    "one byte more for each graph of vLLM": PlantedChange(
        target="edgekit.engines.vllm.estimate.GRAPH_BYTES",
        change=lambda count: count + 1,
        question='edgekit check qwen3-8b --engine vllm --device "RTX 4090" -c 32k --json',
    ),
    "one byte more for the built-in engine": PlantedChange(
        target="edgekit.engines.native.rules.PROCESS_BYTES",
        change=lambda count: count + 1,
        question="edgekit check qwen3-8b --engine stream --ram 4G -c 8k --json",
    ),
    "a larger reserve": PlantedChange(
        target="edgekit.engines.llamacpp.placements.RESERVE_BYTES",
        change=lambda count: count + 2**28,
        question="edgekit check qwen3-8b --ram 16G",
    ),
    "another speed": PlantedChange(
        target="edgekit.engines.speed_places._ASSUMED_BYTES_PER_S",
        change=lambda rows: tuple((gib, rate * 1.01) for gib, rate in rows),
        question="edgekit check qwen3-8b --ram 16G --json",
    ),
    "another order of cache types": PlantedChange(
        target="edgekit.engines.llamacpp.choices.EQUAL_PAIRS",
        change=lambda pairs: (pairs[0], pairs[2], pairs[1]),
        question='edgekit check gemma-3-27b --device "RTX 4090" --ram 64G -c 32k',
    ),
    "another cache type of vLLM": PlantedChange(
        target="edgekit.engines.vllm.choices.DTYPES",
        change=lambda names: names[::-1],
        question='edgekit check qwen3-8b --engine vllm --device "RTX 4090"',
    ),
    "another limit of comfortable use": PlantedChange(
        target="edgekit.bill.types.COMFORTABLE_PERCENT",
        change=lambda _: 60,
        question="edgekit check qwen3-8b --ram 16G",
    ),
    "another spelling of a flag": PlantedChange(
        target="edgekit.engines.llamacpp.flags.FLAGS",
        change=with_long_name_first,
        question="edgekit estimate qwen3-30b-a3b -c 32k -ngl all -ncmoe 20 --json",
    ),
    "a missing note": PlantedChange(
        target="edgekit.app.estimate.model_notes",
        change=lambda _: lambda *_, **__: (),
        question="edgekit estimate sample:gemma-3-27b -c 8k -ngl all",
    ),
    "a missing word in a note": PlantedChange(
        target="edgekit.engines.mlx.estimate.NOT_QUANTISED",
        change=lambda text: text.replace("computed ", ""),
        question="edgekit estimate qwen3-8b --engine mlx -c 8k --explain",
    ),
    "another exit code": PlantedChange(
        target="edgekit.errors.UsageError.exit_code",
        change=lambda code: code + 1,
        question="edgekit check qwen3-8b --ram banana",
    ),
    "a rounded public attribute": PlantedChange(
        target="edgekit.bill.types.Verdict.utilization",
        change=lambda before: property(lambda self: round(before.fget(self), 9)),
        question="model_preflight(model_id='qwen3-8b', ram='16G')",
    ),
    "a sentence of a bill recorded as a hash": PlantedChange(
        target="edgekit.engines.llamacpp.estimate._line",
        change=lambda before: (
            lambda label, pool, size, because, within, **more: before(
                label, pool, size, f"{because}.", within, **more
            )
        ),
        question='edgekit check gemma-3-27b --device "RTX 4090" --ram 64G -c 32k --json',
    ),
    "0 for null in a machine recorded as a hash": PlantedChange(
        target="edgekit.report.check.machine_json",
        change=lambda before: lambda machine: before(machine) | {"cores": 0},
        question='edgekit check gemma-3-27b --device "RTX 4090" --ram 64G -c 32k --json',
        shows='"cores": 0',
    ),
    "false for null": PlantedChange(
        target="edgekit.report.check.machine_json",
        change=lambda before: lambda machine: before(machine) | {"cores": False},
        question='edgekit check llama-3.1-70b --device "2x RTX 3090" --ram 64G --json',
    ),
    "a missing key": PlantedChange(
        target="edgekit.report.check.machine_json",
        change=lambda before: (
            lambda machine: {key: value for key, value in before(machine).items() if key != "cores"}
        ),
        question='edgekit check llama-3.1-70b --device "2x RTX 3090" --ram 64G --json',
    ),
    "a REST answer that differs from the command": PlantedChange(
        target="edgekit.report.check.machine_json",
        change=lambda before: lambda machine: before(machine) | {"cores": 8},
        question='POST /api/v1/check {"model": "llama-3.1-70b", "device": "2x RTX 3090", "ram": "64G"}',
    ),
    "a missing word in the sentence of a card": PlantedChange(
        target="edgekit.report.cards.headline",
        change=lambda before: lambda result: before(result).replace(", about ", ", "),
        question="GET /api/v1/cards/events?ram=8G&max_use=90%25",
    ),
    "another last line of plan": PlantedChange(
        target="edgekit.report.plan.MORE",
        change=lambda line: f"{line}.",
        question='edgekit plan llama-3.1-8b --device "RTX 4060" --ram 32G',
    ),
    "missing flags in the help of plan": PlantedChange(
        target="edgekit.cli.commands.NETWORK",
        change=lambda _: {},
        question="edgekit plan --help",
    ),
    "a shorter bar": PlantedChange(
        target="edgekit.report.text.MOST_CELLS",
        change=lambda _: 40,
        question="edgekit check qwen3-8b --ram 16G",
    ),
    "other columns in a long list": PlantedChange(
        target="edgekit.report.hardware.fitted_table",
        change=lambda before: (
            lambda *given: [line.replace("  gpu", " gpu ") for line in before(*given)]
        ),
        question="edgekit hardware --devices",
    ),
}


def difference_after(name: str) -> str:
    """The difference between the recorded answer and the one after the change."""
    planted = CHANGES[name]
    group, question = next(
        (group, item)
        for group in GROUPS
        for item in group.questions
        if item.title == planted.question
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planted.target, planted.change(pkgutil.resolve_name(planted.target)))
        answers = group.answers([question])
    return difference({question.title: group.recorded()[question.title]}, answers)


@pytest.mark.parametrize("name", CHANGES)
def test_planted_change_changes_a_recorded_answer(name: str) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        result = pool.submit(difference_after, name).result()
    assert result
    assert CHANGES[name].shows in result
