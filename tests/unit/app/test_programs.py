"""app/programs.py: the program that runs a model, among those that are installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.programs import FAIL, answering, write_program

from edgekit.app import programs
from edgekit.app.programs import ChosenProgram, choose_program, installed_programs
from edgekit.engines import engine_named, every_engine
from edgekit.engines.program import Installation
from edgekit.errors import EngineError, MissingExtraError, UsageError
from edgekit.machine.types import Machine
from edgekit.machine.what_if import requested_machine
from edgekit.request import Session
from edgekit.sources.types import Reach

NEW = "version: 0.6.0-dev (build 11549, commit 0c1e570)"
CUDA = answering(
    {
        "--version": NEW,
        "--list-devices": "Available devices:\n  CUDA0: A card (8192 MiB, 8000 MiB free)",
    }
)
CPU = answering({"--version": NEW, "--list-devices": "Available devices:\n  (none)"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setattr(programs, "ANSWER_S", PATIENCE_S)
    return tmp_path


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is that one."""
    monkeypatch.setattr(programs, "detect", lambda: replace(machine, what_if=False))


@pytest.fixture
def _with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on(requested_machine(devices=("RTX 4090",), ram="64G"), monkeypatch)


@pytest.fixture
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on(requested_machine(ram="64G"), monkeypatch)


def choose(wanted: str | None = None) -> ChosenProgram:
    session = Session(reach=Reach(network=False))
    return choose_program("run", "model.gguf", session, engine="llama.cpp", wanted=wanted)


@pytest.mark.usefixtures("_with_gpu")
def test_a_build_for_the_gpu_comes_before_the_wheel_for_the_cpu(folder: Path) -> None:
    write_program(folder / "llama-server", CUDA)
    chosen = choose()
    assert chosen.installation.path == str(folder / "llama-server")
    assert (chosen.program.name, chosen.note) == ("llama-server", "")


@pytest.mark.usefixtures("_with_gpu")
@pytest.mark.parametrize("code", [FAIL, CPU], ids=["does not start", "without the GPU"])
def test_the_wheel_comes_before_a_program_that_is_no_better(folder: Path, code: str) -> None:
    pytest.importorskip("xllamacpp")
    write_program(folder / "llama-server", code)
    chosen = choose()
    assert chosen.program.name == "xllamacpp"
    if not chosen.installation.devices:
        assert "has no support for this machine's GPU" in chosen.note
        assert ("exit code 1" in chosen.note) is (code == FAIL)


@pytest.mark.usefixtures("_without_gpu")
def test_without_a_gpu_nothing_is_searched_for(folder: Path) -> None:
    pytest.importorskip("xllamacpp")
    write_program(folder / "llama-server", "open('started', 'w')")
    assert choose().program.name == "xllamacpp"
    assert not (folder / "started").exists()


@pytest.mark.usefixtures("_without_gpu")
def test_a_program_that_is_asked_for_is_used(folder: Path) -> None:
    write_program(folder / "llama-server", CPU)
    chosen = choose("llama-server")
    assert (chosen.program.name, chosen.installation.rules_version) == (
        "llama-server",
        "0.6.0-dev (b11549)",
    )


@pytest.mark.usefixtures("_without_gpu")
def test_a_program_that_is_asked_for_and_broken_is_an_error_with_its_problem(folder: Path) -> None:
    path = write_program(folder / "llama-server", FAIL)
    with pytest.raises(EngineError) as caught:
        choose("llama-server")
    text = f"llama-server cannot be started: llama-server ({path}): it ends with exit code 1: error while loading"
    assert text in str(caught.value)
    assert "To install it" not in str(caught.value)  # it is installed


@pytest.fixture
def _without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("installed", "run.program"):
        monkeypatch.setattr(f"edgekit.engines.llamacpp.{module}.has_xllamacpp", lambda: False)


@pytest.mark.usefixtures("_without_gpu", "_without_wheel")
def test_a_program_that_is_too_old_is_an_error_with_its_problem(folder: Path) -> None:
    path = write_program(folder / "llama-server", answering({"--version": "version: 8000 (abc)"}))
    with pytest.raises(EngineError) as caught:
        choose()
    text = f"llama.cpp cannot be started: llama-server ({path}): llama.cpp b8000 is too old"
    assert text in str(caught.value)
    assert "pip install" in str(caught.value)


@pytest.mark.usefixtures("_without_gpu", "_without_wheel")
def test_an_engine_that_is_missing_is_an_error_with_what_to_install(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    with pytest.raises(MissingExtraError, match=r"llama\.cpp is not installed: pip install"):
        choose()


@pytest.mark.usefixtures("_with_gpu")
@pytest.mark.parametrize("wanted", [None, "xllamacpp"])
def test_a_wheel_that_does_not_answer_in_time_runs_on_the_cpu_with_a_note(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wanted: str | None
) -> None:
    pytest.importorskip("xllamacpp")
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(programs, "ANSWER_S", 0.0)
    chosen = choose(wanted)
    assert chosen.program.name == "xllamacpp"
    assert chosen.note.startswith(
        "xllamacpp did not answer in time, so the model runs on the CPU: try again, or"
    )
    assert "not usable" not in chosen.note


@pytest.mark.usefixtures("_with_gpu", "_without_wheel")
def test_the_problem_of_another_engine_is_not_that_of_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(folder.iterdir()) == []
    problem = "MLX itself is missing: pip install mlx"
    broken = Installation(program="mlx", origin="PATH", path="", problem=problem)
    first, second = engine_named("llama.cpp"), engine_named("mlx")
    monkeypatch.setattr(type(second), "installations", lambda *_: (broken,))
    monkeypatch.setattr(programs, "_engines_for", lambda *_: (first, second))
    session = Session(reach=Reach(network=False))
    with pytest.raises(MissingExtraError) as caught:
        choose_program("run", "qwen3-8b", session, engine=None, wanted=None)
    assert str(caught.value).startswith("llama.cpp is not installed: pip install")
    assert str(caught.value).endswith(f". mlx was found, but {problem}")


@pytest.mark.usefixtures("_without_gpu")
def test_a_program_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(UsageError, match="unknown program 'toaster'"):
        choose("toaster")


def test_installed_programs_are_in_the_order_of_the_engines(folder: Path) -> None:
    write_program(folder / "llama-server", CUDA)
    found = installed_programs()
    names = [engine.name for engine in every_engine()]
    places = [names.index(item.engine.name) for item in found]
    assert places == sorted(places)
    assert "llama-server" in [item.installation.program for item in found]
