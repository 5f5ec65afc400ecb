"""The version of llama.cpp that bills follow if none is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.programs import write_program

from edgekit.app import programs
from edgekit.app.programs import choose_program
from edgekit.cli import main
from edgekit.engines import engine_named
from edgekit.engines.llamacpp import installed, stored_version
from edgekit.engines.llamacpp.default_version import default_version, version_of_run
from edgekit.engines.llamacpp.setups import default_setup, read_row
from edgekit.engines.llamacpp.types import (
    NEWEST,
    OLDEST,
    VARIABLE,
    LlamaCppSetup,
    LlamaVersion,
    installed_version,
    version_name,
)
from edgekit.machine import probes
from edgekit.machine.types import Machine
from edgekit.machine.what_if import requested_machine
from edgekit.request import Session
from edgekit.sources.types import Reach

WITH_GPU = replace(requested_machine(devices=("RTX 4090",), ram="64G"), what_if=False)
WITHOUT_GPU = replace(requested_machine(ram="64G"), what_if=False)


def forget() -> None:
    """As in a new process."""
    installed_version.cache_clear()
    version_of_run.cache_clear()


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is the whole PATH, on a machine without a GPU; the wheel of the tests is there."""
    monkeypatch.delenv(VARIABLE)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setattr(programs, "ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(installed, "ANSWER_S", PATIENCE_S)
    on(WITHOUT_GPU, monkeypatch)
    forget()
    yield folder
    forget()


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (probes, programs, stored_version):
        monkeypatch.setattr(module, "detect", lambda: machine)


@pytest.fixture
def _without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    package = "edgekit.engines.llamacpp"
    for module in ("default_version", "stored_version"):
        monkeypatch.setattr(f"{package}.{module}.installed_version", lambda: None)
    for module in ("installed", "run.program"):
        monkeypatch.setattr(f"{package}.{module}.has_xllamacpp", lambda: False)


class Server:
    """A llama-server with a CUDA card that counts how often it is asked for its version."""

    def __init__(self, folder: Path, build: int, *, needs: Path | None = None) -> None:
        self.log = folder.parent / "asked"
        self.log.touch()
        self.path = write_program(
            folder / "llama-server",
            f"""
import os, sys
open({str(self.log)!r}, "a").write(sys.argv[1] + "\\n")
if {needs is not None} and not os.path.exists({str(needs)!r}):
    sys.exit("a library is missing")
if sys.argv[1] == "--version":
    print("version: {build} (0c1e570)")
else:
    print("Available devices:\\n  CUDA0: NVIDIA GeForce RTX 4090 (24080 MiB, 23650 MiB free)")
""",
        )

    @property
    def times_asked(self) -> int:
        return self.log.read_text().split().count("--version")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    info = folder / f"xllamacpp-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: xllamacpp\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder))
    forget()


@pytest.mark.parametrize(
    ("version", "rules"),
    [("2026.5.9294", 9294), ("2026.12.12345", NEWEST), ("0.2.14", OLDEST)],
)
def test_default_version_is_that_of_the_installed_wheel(
    version: str, rules: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, version)
    assert default_version().rules == rules
    setups = (
        read_row({}, None)[1],
        default_setup(),
        engine_named("llama.cpp").default_setup(),
    )
    assert {LlamaCppSetup.of(setup).rules for setup in setups} == {rules}


@pytest.mark.usefixtures("_without_wheel")
def test_default_version_is_the_newest_known_without_an_engine() -> None:
    assert default_version() == LlamaVersion(NEWEST)


def test_default_version_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "b9294")
    assert default_version() == LlamaVersion(9294, "b9294")


def test_every_command_bills_the_installed_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, monkeypatch, "2026.12.12345")
    for command in (("check", "--why"), ("plan", "--why"), ("estimate",)):
        main((*command, "sample:gemma-3-27b", "-c", "4k"))
        output = capsys.readouterr().out
        assert "llama.cpp b12345" in output
        assert "is newer than 0.6.0-dev (b11549)" in " ".join(output.split())


@pytest.mark.usefixtures("_without_wheel")
def test_check_and_run_follow_the_same_llama_server(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Server(path, 9294)
    assert main(("check", "sample:gemma-3-27b", "-c", "4k", "--why")) == 0
    assert "llama.cpp b9294" in capsys.readouterr().out
    session = Session(reach=Reach(network=False))
    chosen = choose_program("run", "model.gguf", session, engine=None, wanted=None)
    assert chosen.installation.rules_version == version_name(*default_version()) == "b9294"


@pytest.mark.parametrize(("machine", "rules"), [(WITH_GPU, 9294), (WITHOUT_GPU, NEWEST)])
def test_wheel_and_llama_server_with_a_gpu(
    path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, rules: int
) -> None:
    """`run` starts the server only for its GPU."""
    if installed_version() is None or installed_version() == LlamaVersion(9294, "b9294"):
        pytest.skip("the wheel of another version is not installed")
    server = Server(path, 9294)
    on(machine, monkeypatch)
    assert default_version().rules == rules
    assert server.times_asked == (machine is WITH_GPU)


@pytest.mark.usefixtures("_without_wheel")
def test_a_program_is_asked_again_only_after_a_change(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(path, 9294)
    for times_asked in (1, 1):
        assert default_version().rules == 9294
        assert server.times_asked == times_asked
        forget()
    os.utime(server.path, ns=(0, 0))  # another build of the same size
    default_version()
    assert server.times_asked == 2
    forget()
    on(WITH_GPU, monkeypatch)
    default_version()
    assert server.times_asked == 3


@pytest.mark.usefixtures("_without_wheel")
def test_run_stores_the_version_for_check(path: Path) -> None:
    server = Server(path, 9294)
    session = Session(reach=Reach(network=False))
    choose_program("run", "model.gguf", session, engine=None, wanted=None)
    assert default_version().rules == 9294
    assert server.times_asked == 1


@pytest.mark.usefixtures("_without_wheel")
@pytest.mark.parametrize(
    ("stored_s", "rules"), [(3600.0, LlamaVersion(NEWEST).rules), (-1.0, 9294)]
)
def test_a_program_that_fails_is_asked_again_after_a_time(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored_s: float, rules: int
) -> None:
    monkeypatch.setattr(stored_version, "_FAILED_S", stored_s)
    library = tmp_path / "library"
    Server(path, 9294, needs=library)
    assert default_version() == LlamaVersion(NEWEST)
    forget()
    library.touch()
    assert default_version().rules == rules


@pytest.mark.usefixtures("_without_wheel")
def test_a_program_that_is_too_old_is_asked_once(path: Path) -> None:
    server = Server(path, 8000)
    for _ in range(2):
        assert default_version() == LlamaVersion(NEWEST)
        forget()
    assert server.times_asked == 1


@pytest.mark.usefixtures("_without_wheel")
@pytest.mark.parametrize("text", ["", "[]", '{"programs": 5}', "\xff", "[" * 60_000])
def test_damaged_stored_answer_is_ignored(path: Path, text: str) -> None:
    Server(path, 9294)
    file = Path(os.environ["EDGEKIT_CACHE"], "llama_cpp_version.json")
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="latin-1")
    assert default_version().rules == 9294


def test_the_stored_version_is_read_without_what_starts_engines() -> None:
    code = (
        "import sys, edgekit.engines.llamacpp.stored_version as _\n"
        "print({'edgekit.engines.program', 'concurrent.futures.thread'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
