"""The tests themselves: how they were started does not change what they find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

CHILD = "import signal; print(*(signal.getsignal(getattr(signal, name)).name for name in ('SIGHUP', 'SIGTERM')))"
# As the tests begin in conftest.py, and then start a process.
RUN = f"""
import subprocess, sys
from tests.signals import restore_for_children
restore_for_children()
sys.exit(subprocess.run([sys.executable, "-c", {CHILD!r}]).returncode)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("ignored", ["", "trap '' HUP INT QUIT TERM; "])
def test_processes_get_signals_though_the_run_ignores_them(ignored: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'{ignored}exec "$0" -c "$1"', sys.executable, RUN],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.split() == ["SIG_DFL", "SIG_DFL"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_a_run_that_ignores_the_end_of_its_terminal_still_does() -> None:
    code = (
        "import os, signal; from tests.signals import restore_for_children; restore_for_children();"
        " os.kill(os.getpid(), signal.SIGHUP); print('still here')"
    )
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$0" -c "$1"', sys.executable, code],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "still here\n"
