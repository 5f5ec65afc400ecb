"""tests/signals.py: a test run that ignores signals (nohup, background job) starts children that do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

CHILD = "import signal; print(*(signal.getsignal(getattr(signal, name)).name for name in ('SIGHUP', 'SIGTERM')))"
# As conftest.py does at the start of a run.
RUN = f"""
import subprocess, sys
from tests.signals import restore_for_children
restore_for_children()
sys.exit(subprocess.run([sys.executable, "-c", {CHILD!r}]).returncode)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("ignored", ["", "trap '' HUP INT QUIT TERM; "])
def test_restore_for_children_gives_children_default_handlers(ignored: str) -> None:
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
def test_restore_for_children_keeps_ignoring_sighup_itself() -> None:
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
