"""Ctrl-C at any moment: exit code 130, one line, no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from tests.thoroughness import sampled

# Runs `edgekit` as its console script does and interrupts it at the n-th call of a Python function, counted from the
# call of `main`.
INTERRUPTED = """
import os, signal, sys

def count(frame, event, argument):
    global left
    is_main = frame.f_code.co_name == "main" and frame.f_globals["__name__"] == "edgekit.__main__"
    if event == "call" and (left < limit or is_main):
        left -= 1
        if left == 0:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

limit = left = int(sys.argv.pop(1))
from edgekit.__main__ import main
sys.setprofile(count)
sys.exit(main())
"""
CALLS = (
    1,
    2,
    5,
    20,
    100,
    500,
    2_000,
    4_000,
    6_000,
    8_000,
    10_000,
    12_000,
    15_000,
    20_000,
    25_000,
    30_000,
    40_000,
)


def run_interrupted(calls: int, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", INTERRUPTED, str(calls), *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("calls", sampled(CALLS, each=2))
def test_interrupt_at_any_call_exits_with_130_and_one_line(calls: int) -> None:
    completed = run_interrupted(calls, "check", "sample:gemma-3-27b", "--ram", "64G")
    assert (completed.returncode, completed.stderr) == (130, "edgekit: interrupted\n")


def test_interrupt_in_a_finaliser_is_not_lost() -> None:
    """Python only prints an exception that a finaliser raises, and continues."""
    completed = subprocess.run(
        [sys.executable, "-c", FINALISER], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (130, "edgekit: interrupted\n")


FINALISER = """
import os, signal
import edgekit.__main__ as entry, edgekit.cli

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):
            pass

def run():
    Last()
    return 0

edgekit.cli.main = run
raise SystemExit(entry.main())
"""


def test_sigint_that_is_ignored_from_the_start_stays_ignored() -> None:
    """nohup and a shell's background jobs start programs this way."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + INTERRUPTED
    completed = subprocess.run(
        [sys.executable, "-c", code, "500", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")


def test_interrupt_during_the_first_import() -> None:
    code = (
        "import os, runpy, signal, sys\n"
        "sys.addaudithook(lambda event, arguments: event == 'import' and arguments[0] == 'edgekit.cli'"
        f" and os.kill(os.getpid(), {signal.SIGINT:d}))\n"
        "sys.argv = ['edgekit', 'hardware']\n"
        "runpy.run_module('edgekit', run_name='__main__')\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (130, "edgekit: interrupted\n")
