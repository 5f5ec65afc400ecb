"""A script, `tethered.py PARENT COMMAND`, that becomes another program, which Linux kills when the parent dies.

The script must lead a process group. When the program ends, a watcher in the group kills what the program has started.
It imports nothing from EdgeKit.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ENDED = signal.SIGUSR1


def main() -> None:
    parent, *command = sys.argv[1:]
    signal_at_death_of_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)  # the parent was gone before the kernel could watch it
    leader = os.getpid()
    if os.fork() == 0:
        kill_group_after(leader)
    os.execv(command[0], command)  # noqa: S606 - no shell


def kill_group_after(leader: int) -> None:
    """Kills its own process group, whose number is not reused while it is a member, once the leader is gone."""
    os.closerange(0, 3)  # the parent waits for the end of these pipes
    signal.pthread_sigmask(signal.SIG_BLOCK, {_ENDED, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    signal_at_death_of_parent(_ENDED)
    if os.getppid() == leader:
        signal.sigwait({_ENDED})
    os.killpg(0, signal.SIGKILL)


def signal_at_death_of_parent(number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


if __name__ == "__main__":
    main()
