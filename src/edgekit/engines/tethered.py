"""A script, `tethered.py PARENT COMMAND`, that becomes another program, which Linux kills when the parent dies.

It imports nothing from EdgeKit.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)  # the parent was gone before the kernel could watch it
    os.execv(command[0], command)  # noqa: S606 - no shell


if __name__ == "__main__":
    main()
