"""engines/discovery.py: which programs are found, and what one that must not be trusted can do when it is asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.programs import CRASH, FAIL, FLOOD, HANG, write_program
from tests.unit.machine.trees import machine

from edgekit.engines.discovery import ask_program, find_programs, in_parallel
from edgekit.machine.types import System


def test_ask_program_gives_both_streams(tmp_path: Path) -> None:
    code = "import sys\nprint('log', file=sys.stderr)\nprint('answer')"
    output = ask_program([str(write_program(tmp_path / "a", code))], timeout_s=PATIENCE_S)
    assert output.text.split() == ["answer", "log"]
    assert output.problem == ""


def test_ask_program_gives_no_input_and_starts_in_the_folder_of_the_program(tmp_path: Path) -> None:
    code = "import os, sys\nprint(repr(sys.stdin.read()), os.getcwd(), os.isatty(1))"
    output = ask_program([str(write_program(tmp_path / "a", code))], timeout_s=PATIENCE_S)
    assert output.text.split() == ["''", str(tmp_path), "False"]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (FLOOD, "it prints more than 64 KiB"),
        (CRASH, "it ends with SIGSEGV: about to die"),
        (FAIL, "it ends with exit code 1: error while loading shared libraries: libcudart.so.11.0"),
        ("import sys\nsys.exit(3)", "it ends with exit code 3"),
    ],
    ids=["flood", "crash", "failure", "silent failure"],
)
def test_ask_program_tells_what_went_wrong(tmp_path: Path, code: str, problem: str) -> None:
    output = ask_program([str(write_program(tmp_path / "a", code))], timeout_s=PATIENCE_S)
    assert output.problem == problem


def test_ask_program_kills_a_program_that_hangs_with_what_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        "open('pids', 'w').write(f'{child.pid}')\n"
        "time.sleep(3600)"
    )
    write_program(tmp_path / "a", code)
    timeout_s = 0.2
    while not (tmp_path / "pids").exists():  # a busy machine may not even start it in time
        timeout_s *= 2
        output = ask_program([str(tmp_path / "a")], timeout_s=timeout_s)
        assert output.problem == f"it does not answer within {timeout_s:g} s"
    pid = int((tmp_path / "pids").read_text())
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


def test_ask_program_keeps_what_was_printed_before_it_hung(tmp_path: Path) -> None:
    write_program(tmp_path / "a", HANG)
    timeout_s, text = 0.2, ""
    while not text.strip():
        timeout_s *= 2
        text = ask_program([str(tmp_path / "a")], timeout_s=timeout_s).text
    assert text.strip() == "version: 11549 (abcdef0)"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\x7fELF rubbish", "it does not start: "), (b"", "it does not start: ")],
    ids=["not a program", "empty"],
)
def test_ask_program_that_does_not_start(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    path.chmod(0o755)
    assert ask_program([str(path)], timeout_s=PATIENCE_S).problem.startswith(problem)


def test_ask_program_that_is_gone(tmp_path: Path) -> None:
    output = ask_program([str(tmp_path / "missing")], timeout_s=PATIENCE_S)
    assert output.problem == "it does not start: No such file or directory"


def test_in_parallel_keeps_the_order() -> None:
    assert in_parallel(str, range(40)) == tuple(map(str, range(40)))


def test_find_programs_lists_each_program_once_and_no_other_files(tmp_path: Path) -> None:
    write_program(tmp_path / "one" / "tool", "")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "tool").symlink_to(tmp_path / "one" / "tool")
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "tool").write_text("not executable")
    write_program(tmp_path / "four" / "tool", "")
    (tmp_path / "five" / "tool").mkdir(parents=True)
    folders = [tmp_path / name for name in ("one", "two", "three", "missing", "four", "five")]
    path = os.pathsep.join(map(str, folders))
    here = machine(tmp_path / "root", environment={"PATH": path})
    assert [found.path for found in find_programs("tool", here)] == [
        tmp_path / "one" / "tool",
        tmp_path / "four" / "tool",
    ]


def test_find_programs_does_not_search_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "tool", "")
    monkeypatch.chdir(tmp_path)
    for path in (".", "", f"{os.pathsep}{os.pathsep}."):
        assert find_programs("tool", machine(tmp_path / "root", environment={"PATH": path})) == ()


@pytest.mark.parametrize(
    ("system", "folder", "origin"),
    [
        (System.MACOS, "opt/homebrew/bin", "Homebrew"),
        (System.MACOS, "usr/local/bin", "Homebrew"),
        (System.MACOS, "opt/local/bin", "MacPorts"),
        (System.LINUX, "home/linuxbrew/.linuxbrew/bin", "Homebrew"),
    ],
)
def test_find_programs_in_the_folders_of_package_managers(
    tmp_path: Path, system: System, folder: str, origin: str
) -> None:
    write_program(tmp_path / folder / "tool", "")
    (found,) = find_programs("tool", machine(tmp_path, system=system))
    assert (found.path, found.origin) == (tmp_path / folder / "tool", origin)


def test_find_programs_of_a_path_with_thousands_of_folders(tmp_path: Path) -> None:
    path = os.pathsep.join(f"/missing/{number}" for number in range(5000))
    here = machine(
        tmp_path, environment={"PATH": path + os.pathsep + str(Path(sys.executable).parent)}
    )
    assert find_programs(Path(sys.executable).name, here) == ()
