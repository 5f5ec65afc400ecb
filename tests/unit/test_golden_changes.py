"""Small changes to the code, made on purpose: the recorded answers must notice each of them.

Every change is made in a process of its own, because caches would keep what was computed with it.
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
class Planted:
    """Where something is changed and how, a question whose answer depends on it, and new words in the difference."""

    target: str
    change: Callable[[Any], Any]
    question: str
    shows: str = ""


def respelled(flags: tuple[Any, ...]) -> tuple[Any, ...]:
    """The flags of llama.cpp, with --n-gpu-layers before -ngl: the first name is the one that is printed."""
    return tuple(
        flag._replace(names=flag.names[::-1]) if "-ngl" in flag.names else flag for flag in flags
    )


PLANTED = {
    "one byte more for llama.cpp": Planted(
        target="edgekit.engines.llamacpp.estimate.CUDA_CONTEXT_BYTES",
        change=lambda count: count + 1,
        question='edgekit check llama-3.1-8b --device "RTX 4060" --ram 32G -c 8k --json',
    ),
    "one byte more for MLX": Planted(
        target="edgekit.engines.mlx.compute.PROCESS_BYTES",
        change=lambda count: count + 1,
        question="edgekit check qwen3-8b --engine mlx --device m2-16 -c 32k --kv-bits 8 --json",
    ),
    "one byte more for each graph of vLLM": Planted(
        target="edgekit.engines.vllm.estimate.GRAPH_BYTES",
        change=lambda count: count + 1,
        question='edgekit check qwen3-8b --engine vllm --device "RTX 4090" -c 32k --json',
    ),
    "one byte more for the built-in engine": Planted(
        target="edgekit.engines.native.rules.PROCESS_BYTES",
        change=lambda count: count + 1,
        question="edgekit check qwen3-8b --engine stream --ram 4G -c 8k --json",
    ),
    "a larger reserve": Planted(
        target="edgekit.engines.llamacpp.placements.RESERVE_BYTES",
        change=lambda count: count + 2**28,
        question="edgekit check qwen3-8b --ram 16G",
    ),
    "another speed": Planted(
        target="edgekit.engines.speed.DESKTOP_BYTES_PER_S",
        change=lambda slow_and_fast: (slow_and_fast[0] * 1.01, slow_and_fast[1]),
        question="edgekit check qwen3-8b --ram 16G --json",
    ),
    "another cache before the usual one": Planted(
        target="edgekit.engines.llamacpp.choices.EQUAL_PAIRS",
        change=lambda pairs: (pairs[0], pairs[2], pairs[1]),
        question='edgekit check gemma-3-27b --device "RTX 4090" --ram 64G -c 32k',
    ),
    "another cache of vLLM": Planted(
        target="edgekit.engines.vllm.choices.DTYPES",
        change=lambda names: names[::-1],
        question='edgekit check qwen3-8b --engine vllm --device "RTX 4090"',
    ),
    "another limit of comfortable": Planted(
        target="edgekit.bill.types.COMFORTABLE_PERCENT",
        change=lambda _: 60,
        question="edgekit check qwen3-8b --ram 16G",
    ),
    "another spelling of a flag": Planted(
        target="edgekit.engines.llamacpp.flags.FLAGS",
        change=respelled,
        question="edgekit estimate qwen3-30b-a3b -c 32k -ngl all -ncmoe 20 --json",
    ),
    "a lost note": Planted(
        target="edgekit.app.estimate.model_notes",
        change=lambda _: lambda *_, **__: (),
        question="edgekit estimate sample:gemma-3-27b -c 8k -ngl all",
    ),
    "a word less in a note": Planted(
        target="edgekit.engines.mlx.estimate.NOT_QUANTISED",
        change=lambda text: text.replace("computed ", ""),
        question="edgekit estimate qwen3-8b --engine mlx -c 8k --explain",
    ),
    "another exit code": Planted(
        target="edgekit.errors.UsageError.exit_code",
        change=lambda code: code + 1,
        question="edgekit check qwen3-8b --ram banana",
    ),
    "a public attribute that is rounded": Planted(
        target="edgekit.bill.types.Verdict.utilization",
        change=lambda before: property(lambda self: round(before.fget(self), 9)),
        question="model_preflight(model_id='qwen3-8b', ram='16G')",
    ),
    "a sentence in a bill that is recorded as a hash": Planted(
        target="edgekit.engines.llamacpp.estimate._line",
        change=lambda before: (
            lambda what, pool, size, because, within, **more: before(
                what, pool, size, f"{because}.", within, **more
            )
        ),
        question='edgekit check gemma-3-27b --device "RTX 4090" --ram 64G -c 32k --json',
    ),
    "0 for null in a machine that is recorded as a hash": Planted(
        target="edgekit.report.check.machine_json",
        change=lambda before: lambda machine: before(machine) | {"cores": 0},
        question='edgekit check gemma-3-27b --device "RTX 4090" --ram 64G -c 32k --json',
        shows='"cores": 0',
    ),
    "false for null": Planted(
        target="edgekit.report.check.machine_json",
        change=lambda before: lambda machine: before(machine) | {"cores": False},
        question='edgekit check llama-3.1-70b --device "2x RTX 3090" --ram 64G --json',
    ),
    "a key that is gone": Planted(
        target="edgekit.report.check.machine_json",
        change=lambda before: (
            lambda machine: {key: one for key, one in before(machine).items() if key != "cores"}
        ),
        question='edgekit check llama-3.1-70b --device "2x RTX 3090" --ram 64G --json',
    ),
    "a request that answers unlike the command": Planted(
        target="edgekit.report.check.machine_json",
        change=lambda before: lambda machine: before(machine) | {"cores": 8},
        question='POST /api/v1/check {"model": "llama-3.1-70b", "device": "2x RTX 3090", "ram": "64G"}',
    ),
    "a word less in the sentence of a card": Planted(
        target="edgekit.report.cards.headline",
        change=lambda before: lambda result: before(result).replace(", about ", ", "),
        question="GET /api/v1/cards/events?ram=8G&max_use=90%25",
    ),
    "another last line of plan": Planted(
        target="edgekit.report.plan.MORE",
        change=lambda line: f"{line}.",
        question='edgekit plan llama-3.1-8b --device "RTX 4060" --ram 32G',
    ),
    "a line less in the help of plan": Planted(
        target="edgekit.cli.commands.add_network_options",
        change=lambda _: lambda _: None,
        question="edgekit plan --help",
    ),
    "one cell less in a bar": Planted(
        target="edgekit.report.text.MOST_CELLS",
        change=lambda _: 40,
        question="edgekit check qwen3-8b --ram 16G",
    ),
    "other columns in a long list": Planted(
        target="edgekit.report.hardware.fitted_table",
        change=lambda before: (
            lambda *given: [line.replace("  gpu", " gpu ") for line in before(*given)]
        ),
        question="edgekit hardware --devices",
    ),
}


def noticed(name: str) -> str:
    """How the answer to the question differs from the recorded one, once the change is made."""
    planted = PLANTED[name]
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


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_change_is_noticed(name: str) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        result = alone.submit(noticed, name).result()
    assert result
    assert PLANTED[name].shows in result
