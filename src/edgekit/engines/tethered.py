"""A script, `tethered.py COMMAND`, that becomes another program, which is killed when EdgeKit ends in any way.

Standard input is a pipe that EdgeKit holds open. A watcher in the program's process group waits until the pipe is
closed, and then kills the group. The script must lead its process group, and imports nothing from EdgeKit.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    if os.fork() == 0:
        kill_group_when_input_ends()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell


def kill_group_when_input_ends() -> None:
    """Kills its own process group, whose number is not reused while it is a member."""
    os.closerange(1, 3)  # EdgeKit waits for the end of these pipes
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
