"""Models x devices x engines: the longest context is the longest whose bill fits; one step more does not fit.

Twenty models in the normal run, with llama.cpp each on every eighth device; `make test-all` takes all that are recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from tests.recorded import config_header, engine_models, models, rows
from tests.thoroughness import LONG, sampled

from edgekit.bill.types import Task, Verdict
from edgekit.errors import HardwareError, RefusedError
from edgekit.machine.types import Machine
from edgekit.machine.what_if import what_if_machine
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.plan.choice import judge, with_weights
from edgekit.plan.fit import Fitting, Ladder, placements_of

# Dense, grouped, sliding, latent, hybrid, recurrent, experts, encoder: a few of each class.
CHOSEN = (
    "all-minilm-l6-v2", "deepseek-v2-lite", "deepseek-v3", "falcon-h1-1.5b", "gemma-2-9b", "gemma-3-27b",
    "gemma-3n-e4b", "gpt-oss-20b", "jamba-1.5-mini", "llama-3.1-70b", "llama-3.1-8b", "llama-4-scout", "mamba-2.8b",
    "minicpm3-4b", "mistral-small-24b", "mixtral-8x7b", "phi-3-mini-128k", "qwen3-30b-a3b", "qwen3-next-80b-a3b",
    "qwen3.5-9b",
)  # fmt: skip
# Their names in the rows of vLLM and MLX; some are in neither.
CONFIG_NAMES = {
    "falcon-h1-1.5b": "falcon-h1-0.5b",
    "gemma-3-27b": "gemma-3-27b-text",
    "jamba-1.5-mini": "jamba-v0.1",
    "llama-4-scout": "llama-4-scout-text",
    "mamba-2.8b": "mamba2-2.7b",
    "phi-3-mini-128k": "phi-3-mini-4k",
    "qwen3.5-9b": "qwen3.5-9b-text",
}
DEVICES: tuple[tuple[tuple[str, ...], str | None], ...] = (
    ((), "8G"),
    ((), "64G"),
    (("RTX 3060",), "16G"),
    (("RTX 4090",), "64G"),
    (("2x RTX 3090",), "128G"),
    (("RTX 4090, RTX 3060",), "64G"),
    (("4x A10G",), "192G"),
    (("H100 80GB",), None),
    (("m1-8",), None),
    (("m3-max-36",), None),
    (("m4-max-128",), None),
    (("phone-8",), None),
)


ON_ALL_MACHINES = "llama-3.1-8b Q4_K_M"


@cache
def machines() -> tuple[Machine, ...]:
    return tuple(what_if_machine(devices=names, ram=ram) for names, ram in DEVICES)


@cache
def configs() -> dict[str, Model]:
    result: dict[str, Model] = {}
    for file in ("vllm.jsonl.gz", "mlx.jsonl.gz"):
        for row in rows(file):
            if row.get("config") and row["model"] not in result:
                header = config_header(row["config"])
                result[row["model"]] = Model(header=header, geometry=read_geometry(header))
    return result


def cases() -> Iterator[tuple[str, str]]:
    if LONG:
        yield from (("llama.cpp", f"{model['model']} {model['quant']}") for model in models())
        yield from ((engine, name) for engine in ("vllm", "mlx") for name in configs())
        return
    for name in CHOSEN:
        quant = next(model["quant"] for model in models() if model["model"] == name and model["quant"] != "F16")  # fmt: skip
        yield "llama.cpp", f"{name} {quant}"
        for engine in ("vllm", "mlx"):
            if CONFIG_NAMES.get(name, name) in configs():
                yield engine, CONFIG_NAMES.get(name, name)


def model_of(engine: str, name: str) -> Model:
    if engine != "llama.cpp":
        return configs()[name]
    model, quant = name.split(" ")
    return engine_models()[model, quant]


def machines_for(engine: str, name: str) -> tuple[Machine, ...]:
    """Every eighth machine, from another start for each model; ON_ALL_MACHINES gets all of them."""
    if engine != "llama.cpp" or name == ON_ALL_MACHINES:
        return machines()
    place = [model for kind, model in cases() if kind == engine].index(name)
    return tuple(sampled(machines(), each=8, turn=place))


@cache
def verdicts(engine: str, name: str) -> tuple[tuple[Task, Verdict], ...]:
    return tuple(_verdicts(engine, name))


def _verdicts(engine: str, name: str) -> Iterator[tuple[Task, Verdict]]:
    model = model_of(engine, name)
    for machine in machines_for(engine, name):
        task = Task(model=model, engine=engine, machine=machine)
        try:
            yield task, judge(task)
        except (HardwareError, RefusedError):
            continue


@pytest.mark.parametrize(("engine", "name"), list(cases()))
def test_longest_context_fits_and_one_step_more_does_not(engine: str, name: str) -> None:
    for task, result in verdicts(engine, name):
        fitting = chosen(task, result)
        longest, step, max_tokens = result.max_context, fitting.step_tokens, fitting.max_tokens
        assert longest <= max_tokens
        assert longest % step == 0 or longest == max_tokens
        if longest:
            assert _holds(task, result, fitting), task.machine.name
        if longest < max_tokens:
            assert not fits(fitting, min(longest + step, max_tokens)), task.machine.name


def _holds(task: Task, result: Verdict, fitting: Fitting) -> bool:
    """Whether the longest context fits; if the verdict failed, perhaps with another placement than its own."""
    longest = result.max_context
    if fitting.price(longest).fits or not result.failed:
        return fitting.price(longest).fits
    return judge(replace(task, load=replace(task.load, context_tokens=longest))).can_load


@pytest.mark.parametrize(("engine", "name"), list(cases()))
def test_linear_scan_finds_no_longer_context(engine: str, name: str) -> None:
    rng = random.Random(name)  # the same sample every time
    for task, result in verdicts(engine, name):
        fitting = chosen(task, result)
        step = fitting.step_tokens
        places = range(result.max_context // step + 1, -(-fitting.max_tokens // step))
        near, far = places[:8], rng.sample(places, min(8, len(places)))
        for place in (*near, *far):
            assert not fits(fitting, place * step), (task.machine.name, place)


def chosen(task: Task, result: Verdict) -> Fitting:
    """The fitting with the weights, the cache types and the placement of the verdict."""
    assert result.variant is not None
    load = replace(task.load, cache_k=result.load.cache_k, cache_v=result.load.cache_v)
    return Fitting(replace(with_weights(task, result.variant), load=load), result.way)


def fits(fitting: Fitting, tokens: int) -> bool:
    try:
        return fitting.price(tokens).fits
    except RefusedError:
        return False


def test_every_step_of_a_window_fits_on_one_machine() -> None:
    """A model with a sliding window and one with layers in RAM: steps near the longest and every fourth; with LONG all."""
    for name, machine in (("gemma-3-27b", machines()[9]), ("mistral-small-24b", machines()[2])):
        task = Task(model=engine_models()[name, "Q4_K_M"], engine="llama.cpp", machine=machine)
        fitting = Fitting(task, judge(task).way)
        steps = range(fitting.step_tokens, fitting.max_tokens + 1, fitting.step_tokens)
        near = range(
            fitting.longest_tokens - 8 * fitting.step_tokens,
            fitting.longest_tokens + 9 * fitting.step_tokens,
        )
        lengths = {*sampled(steps, each=4), *(tokens for tokens in steps if tokens in near)}
        longest = max((tokens for tokens in lengths if fits(fitting, tokens)), default=0)
        assert longest == fitting.longest_tokens


def test_longest_context_of_a_ladder_is_that_of_its_best_placement() -> None:
    """Ladder skips placements by guesses; here each one is tried."""
    task = Task(
        model=engine_models()["llama-3.1-8b", "Q8_0"],
        engine="llama.cpp",
        machine=what_if_machine(vram="4G", ram="12G"),
    )
    placements = tuple(placements_of(task))
    rungs = [Fitting(task, placement) for placement in placements]
    longest = max(rung.longest_tokens for rung in rungs)
    assert Ladder(task, placements).longest_tokens == longest > rungs[0].longest_tokens


def test_all_three_engines_are_covered() -> None:
    counts = {
        (engine, name): len(verdicts(engine, name))
        for engine, name in cases()
        if name.startswith("llama-3.1-8b")
    }
    assert counts["llama.cpp", ON_ALL_MACHINES] == len(DEVICES)
    assert counts["vllm", "llama-3.1-8b"] == 6  # machines with NVIDIA cards
    assert counts["mlx", "llama-3.1-8b"] == 3  # Macs
