"""The backend and the cards that `run` starts a llama-server with, by the devices that the program lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.patience import PATIENCE_S
from tests.programs import write_program
from tests.runnable import write_chatting

from edgekit.app import programs
from edgekit.app import run as app_run
from edgekit.cli import main
from edgekit.machine.types import Machine
from edgekit.machine.what_if import requested_machine
from edgekit.units import GIB

# Answers the two questions that every llama-server is asked; started with a model, it records how, and ends.
SERVER = """\
import json, os, sys
listed = {listed!r}
if sys.argv[1] == "--version":
    print("version: 0.6.0-dev (build 11549, commit 0c1e570)")
elif sys.argv[1] == "--list-devices":
    print("Available devices:")
    for name in listed:
        print(f"  {{name}} (24560 MiB, 24000 MiB free)")
else:
    with open({record!r}, "w") as file:
        json.dump({{"words": sys.argv[1:], "environment": dict(os.environ)}}, file)
    sys.exit(1)
"""
IN_PROCESSOR = "AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO)"
LARGE, SMALL = "RX 7900 XTX", "RX 6400"


def machine_of(*cards: str) -> Machine:
    """A machine with these cards, the small ones nearly full."""
    machine = requested_machine(devices=cards, ram="64G")
    devices = (
        replace(card, free_bytes=GIB) if name == SMALL else card
        for card, name in zip(machine.devices, cards, strict=True)
    )
    return replace(machine, what_if=False, devices=tuple(devices))


class Started(NamedTuple):
    backend: str  # of the plan
    words: list[str]
    environment: dict[str, str]

    @property
    def variables(self) -> dict[str, str]:
        names = ("HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")
        return {name: self.environment[name] for name in names if name in self.environment}


Start = Callable[..., Started]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatting(tmp_path_factory.mktemp("run") / "run.gguf")


@pytest.fixture
def start(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    for name in ("HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(programs, "ANSWER_S", PATIENCE_S)
    backends: list[str] = []
    judge = app_run.judge

    def judge_and_note(*arguments: Any) -> Any:
        judged = judge(*arguments)
        backends.append(judged.check.bill.estimate.backend)
        return judged

    monkeypatch.setattr(app_run, "judge", judge_and_note)

    def start(cards: tuple[str, ...], listed: tuple[str, ...], *argv: str) -> Started:
        """Runs the model on a machine with these cards, by a llama-server that lists those."""
        record = tmp_path / "record.json"
        code = SERVER.format(listed=listed, record=str(record))
        write_program(tmp_path / "llama-server", code)
        for module in (programs, app_run):
            monkeypatch.setattr(module, "detect", lambda: machine_of(*cards))
        words = ("run", str(model), "-p", "a", "--with", "llama-server", "-c", "512", *argv)
        assert main(words) == 5  # it ends
        (backend,) = set(backends)
        return Started(backend, **json.loads(record.read_text()))

    return start


@pytest.mark.parametrize(
    ("cards", "listed", "backend", "variables"),
    [
        (("RTX 4090",), ("Vulkan0: NVIDIA GeForce RTX 4090",), "vulkan", {}),
        (
            ("RTX 4090",),
            (f"Vulkan0: {IN_PROCESSOR}", "Vulkan1: NVIDIA GeForce RTX 4090"),
            "vulkan",
            {"GGML_VK_VISIBLE_DEVICES": "1"},
        ),
        (("RTX 4090",), ("CUDA0: NVIDIA GeForce RTX 4090",), "cuda", {}),
        (
            ("RTX 4090",),
            ("Vulkan0: NVIDIA GeForce RTX 4090", "CUDA0: NVIDIA GeForce RTX 4090"),
            "cuda",
            {"GGML_VK_VISIBLE_DEVICES": ""},
        ),
        ((LARGE,), ("ROCm0: AMD Radeon RX 7900 XTX",), "hip", {}),
        ((LARGE,), ("Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31)",), "vulkan", {}),
        (
            (SMALL, LARGE),  # the small one is not used
            ("ROCm0: AMD Radeon RX 6400", "ROCm1: AMD Radeon RX 7900 XTX"),
            "hip",
            {"HIP_VISIBLE_DEVICES": "1"},
        ),
        (
            (LARGE, "RX 7900 XT"),  # the program lists them in another order
            ("Vulkan0: AMD Radeon RX 7900 XT (RADV)", "Vulkan1: AMD Radeon RX 7900 XTX (RADV)"),
            "vulkan",
            {"GGML_VK_VISIBLE_DEVICES": "1,0"},
        ),
    ],
    ids=[
        "NVIDIA by Vulkan", "next to integrated graphics", "CUDA", "two backends", "ROCm", "AMD by Vulkan",
        "a part by ROCm", "another order",
    ],
)  # fmt: skip
def test_llama_server_is_planned_and_started_for_what_it_lists(
    start: Start,
    cards: tuple[str, ...],
    listed: tuple[str, ...],
    backend: str,
    variables: dict[str, str],
) -> None:
    started = start(cards, listed)
    assert (started.backend, started.variables) == (backend, variables)


def test_a_backend_that_is_asked_for_is_used(start: Start) -> None:
    listed = ("CUDA0: NVIDIA GeForce RTX 4090", "Vulkan0: NVIDIA GeForce RTX 4090")
    started = start(("RTX 4090",), listed, "--backend", "vulkan")
    assert started.backend == "vulkan"
    assert started.environment["CUDA_VISIBLE_DEVICES"] == ""


def test_numbers_are_those_of_the_cards_that_the_user_has_left_visible(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2,3")
    listed = ("ROCm0: AMD Radeon RX 6400", "ROCm1: AMD Radeon RX 7900 XTX")
    assert start((SMALL, LARGE), listed).variables == {"HIP_VISIBLE_DEVICES": "3"}


def test_a_machine_whose_cards_are_not_listed_runs_on_the_cpu(start: Start) -> None:
    started = start(("RTX 4090",), (f"ROCm0: {IN_PROCESSOR}",))
    assert started.backend == "cpu"
    assert "none" in started.words  # -dev none


def test_a_backend_that_the_program_lacks_is_refused(
    start: Start, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(("RTX 4090",), ("Vulkan0: NVIDIA GeForce RTX 4090",))
    record = tmp_path / "record.json"
    record.unlink()
    words = ("run", str(model), "-p", "a", "--with", "llama-server", "--backend", "cuda")
    assert main(words) == 2
    message = "this llama-server has no CUDA, only Vulkan: leave out --backend"
    assert message in capsys.readouterr().err
    assert not record.exists()


@pytest.mark.parametrize(
    "name", ["AMD Ryzen 9 7950X (RADV RAPHAEL_MENDOCINO)", "Intel(R) Graphics"]
)
def test_a_card_is_not_planned_as_that_of_another_vendor(start: Start, name: str) -> None:
    assert start(("RTX 4090",), (f"Vulkan0: {name}",)).backend == "cpu"
