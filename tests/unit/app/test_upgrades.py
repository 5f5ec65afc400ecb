"""How many models run fully on the GPU at each size of its memory: as `check` says on a card of that size."""

from __future__ import annotations

import json

import pytest
from tests.documented import documented

from edgekit.app import upgrades as upgrades_module
from edgekit.app.candidates import OFFLINE, Candidates, complete, task_for
from edgekit.app.upgrades import GPU_SIZES_GB, MOST_GAINED, Upgrades, upgrades
from edgekit.cli import main
from edgekit.engines import engine_named
from edgekit.errors import EdgekitError
from edgekit.index import read_index
from edgekit.index.types import Entry, Index, ModelPurpose
from edgekit.machine.what_if import what_if_machine
from edgekit.plan.choice import smallest_usual_loads
from edgekit.plan.fit import first_placement
from edgekit.report.text import ASCII, Screen
from edgekit.report.upgrades import upgrades_text
from edgekit.request import Request
from edgekit.units import GIB

# Dense, of experts, with windows, recurrent, released in four bits, with a projector, for embeddings, not supported.
NAMES = (
    "qwen3-0.6b", "qwen3-8b", "gemma-3-12b", "gemma-3-27b", "qwen3-30b-a3b", "gpt-oss-20b", "qwen3.5-9b",
    "llama-3.3-70b", "phi-4", "bge-small-en-v1.5", "llama-3.2-11b-vision-instruct",
)  # fmt: skip


@pytest.fixture(autouse=True)
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    known = [entry for entry in read_index().entries if entry.id in NAMES]
    assert len(known) == len(NAMES)

    def checked(_: Index) -> list[Entry]:
        return known

    monkeypatch.setattr(upgrades_module, "checked_entries", checked)
    return known


def own_step(answer: Upgrades) -> int:
    return next(number for number, step in enumerate(answer.steps) if step.is_now)


def is_fully_on_gpu(candidates: Candidates, entry: Entry) -> bool:
    """Whether the plan has the whole model on the GPU, in one of steps 1 to 4."""
    try:
        result = candidates.plan(entry).result
    except EdgekitError:
        return False
    return result.can_load and result.step <= 4 and result.way.whole and bool(result.way.cards)


@pytest.mark.parametrize(
    ("device", "ram", "engine"),
    [
        ("RTX 3060", "64G", "llama.cpp"),
        ("RTX 4090", "64G", "llama.cpp"),
        ("RX 7900 XTX", "64G", "llama.cpp"),
        ("m3-max-36", None, "llama.cpp"),
        ("m3-max-36", None, "mlx"),
        ("RTX 3060", "64G", "vllm"),  # too old for an FP8 cache
        ("RTX 4090", "64G", "vllm"),
    ],
)
def test_agrees_with_the_plan(
    device: str, ram: str | None, engine: str, entries: list[Entry]
) -> None:
    request = complete(Request(devices=(device,), ram=ram, engines=(engine,)))
    sizes = tuple(upgrades_module._sizes_for(request.find_machine()))
    places = upgrades_module._places(entries, sizes, request, OFFLINE)
    (name,) = (card.name for card in request.find_machine().devices)
    own = next(i for i, size in enumerate(sizes) if size.machine.devices[0].name == name)
    candidates = Candidates(request, OFFLINE)
    held = {entry.id for entry in entries if places[entry.id] <= own}
    assert held == {entry.id for entry in entries if is_fully_on_gpu(candidates, entry)}


@pytest.mark.parametrize("device", ["H200", "m3-max-64", "RX 7900 XTX"])
def test_bounds_enclose_the_bill(device: str, entries: list[Entry]) -> None:
    request = complete(Request(devices=(device,), engines=("llama.cpp",)))
    engine, compared = engine_named("llama.cpp"), 0
    for entry in entries:
        try:
            task = task_for(entry, request)
            (load, *_), tokens = smallest_usual_loads(task)
        except EdgekitError:
            continue
        setup = first_placement(load).setup
        bounds = engine.estimate_bounds(load.model, load.load_of(tokens), setup)
        if bounds is None:
            continue
        bill = engine.estimate(load.model, load.load_of(tokens), setup)
        pools = {line.pool for line in bill.lines}
        for pool in pools:
            low, size, high = (
                estimate.in_pools(frozenset({pool})) for estimate in (bounds[0], bill, bounds[1])
            )
            assert low <= size <= high, (entry.id, pool)
        compared += 1
    assert compared >= 8


def test_counts_grow_and_gained_models_are_new() -> None:
    answer = upgrades(Request(devices=("RTX 4070",), ram="32G"))
    counts = [step.count for step in answer.steps]
    assert counts == sorted(counts)
    gained = [entry.id for step in answer.steps for entry in step.gained]
    assert len(gained) == len(set(gained))
    assert all(len(step.gained) <= MOST_GAINED for step in answer.steps)
    assert answer.steps[own_step(answer)].size.devices[0] == "RTX 4070"
    assert answer.models < len(NAMES)  # without those for embeddings
    # 11.51 GiB that the driver leaves, less the reserve of 1 GiB
    assert 10 * GIB < answer.now_bytes < 11 * GIB


def test_sizes_without_a_device_are_left_out() -> None:
    answer = upgrades(Request(devices=("RTX 4070",)))
    sizes = {step.size.size_gb for step in answer.steps}
    assert sizes < set(GPU_SIZES_GB)
    assert all(step.size.devices for step in answer.steps)
    assert 128 not in sizes


def test_a_size_of_its_own_is_a_step() -> None:
    answer = upgrades(Request(devices=("GTX 1080 Ti",)))  # 11 GB
    step = answer.steps[own_step(answer)]
    assert (step.size.size_gb, step.size.devices[0]) == (11, "GTX 1080 Ti")


def test_a_mac_is_compared_with_macs() -> None:
    answer = upgrades(Request(devices=("m3-max-64",)))
    assert answer.steps[own_step(answer)].size.size_gb == 64
    assert all(name.startswith(("M", "MacBook")) for s in answer.steps for name in s.size.devices)


def test_several_cards_count_like_one_with_the_memory_of_all() -> None:
    answer = upgrades(Request(devices=("2x RTX 3090",), ram="64G"))
    assert answer.steps[own_step(answer)].size.size_gb == 48
    assert any("2 GPUs" in note for note in answer.notes)


def test_without_a_gpu_no_step_is_the_own_one() -> None:
    answer = upgrades(Request(ram="16G"))
    assert answer.now_bytes == 0
    assert not any(step.is_now for step in answer.steps)
    assert "runs none of" in upgrades_text(answer)


def test_the_task_decides_which_models_count() -> None:
    request = Request(devices=("RTX 4070",), purpose=ModelPurpose.EMBEDDING)
    answer = upgrades(request)
    assert answer.models == 1
    assert answer.steps[0].count == 1


def test_answers_are_stored_for_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    first = upgrades(Request(devices=("RTX 4070",)))

    def is_not_called(*_: object) -> int:
        raise AssertionError("computed again")

    monkeypatch.setattr(upgrades_module, "_place", is_not_called)
    again = upgrades(Request(devices=("RTX 4070",)))
    assert [step.count for step in again.steps] == [step.count for step in first.steps]
    upgrades(Request(devices=("RTX 4070",), purpose=ModelPurpose.CODE))


@pytest.mark.parametrize("stored", [None, [], {"places": 3}, {"places": {"x": 1}}, {"places": {}}])
def test_a_damaged_store_is_computed_again(stored: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_: str) -> object:
        return stored

    expected = upgrades(Request(devices=("RTX 4070",)))
    monkeypatch.setattr(upgrades_module, "read_stored", damaged)
    answer = upgrades(Request(devices=("RTX 4070",)))
    assert [step.count for step in answer.steps] == [step.count for step in expected.steps]


@pytest.mark.parametrize("width", [20, 40, 60, 100])
def test_the_table_fits_the_screen(width: int) -> None:
    answer = upgrades(Request(devices=("RTX 4070",)))
    text = upgrades_text(answer, Screen(width=width, glyphs=ASCII))
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width


def test_the_command_prints_the_steps_and_their_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["hardware", "--device", "RTX 4070", "--upgrades"]
    assert main(words) == 0
    assert "12 GB" in capsys.readouterr().out
    assert main([*words, "--task", "code", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["task"] == "code"
    steps = document["steps"]
    keys = {*document, *(key for step in steps for key in step)}
    keys |= {key for step in steps for gained in step["gained"] for key in gained}
    assert keys == documented("hardware --upgrades")


@pytest.mark.parametrize(
    "words", [["--task", "code"], ["--upgrades", "--measure"], ["--upgrades", "--devices"]]
)
def test_flags_that_do_not_go_together(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hardware", *words]) == 2
    assert "--upgrades" in capsys.readouterr().err


def test_every_machine_of_a_size_is_a_device_that_check_knows() -> None:
    sizes = tuple(upgrades_module._sizes_for(what_if_machine(devices=("RTX 4070",))))
    own = [size for size in sizes if size.machine.devices[0].name in size.devices]
    for size in own:
        card = what_if_machine(devices=(size.machine.devices[0].name,)).devices[0]
        assert card.total_bytes == size.machine.devices[0].total_bytes
    assert len(own) >= len(sizes) - 2  # NVIDIA sells no card of 64 or 192 GB
