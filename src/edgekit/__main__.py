"""The command `edgekit`, and `python -m edgekit`.

Ctrl-C ends the command with exit code 130 from the first lines of this file on. Python's own handler raises
KeyboardInterrupt wherever the program happens to be, which shows a traceback while modules are imported. So a handler
that ends the process is installed before anything else is imported, and Python's is in place only while a command
runs, which can then clean up.
"""

import os
import sys

# `typing` may not be imported before the handler is installed, nor may `signal`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import NoReturn
else:
    import _signal  # built into the interpreter

_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def _end(*_: object) -> "NoReturn":
    try:
        os.write(2, b"edgekit: interrupted\n")
    finally:
        os._exit(_INTERRUPTED)


def _end_if_interrupted(lost: "sys.UnraisableHookArgs") -> None:
    """End on a Ctrl-C during a finaliser, where Python would only print a traceback and continue."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(lost)


# If SIGINT is ignored on purpose (nohup, a background job), it stays ignored.
_is_handled = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
if _is_handled:
    _signal.signal(_signal.SIGINT, _end)
    sys.unraisablehook = _end_if_interrupted


def main() -> int:
    from edgekit.cli import main as run_command

    if not _is_handled:
        return run_command()
    try:
        try:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
            return run_command()
        finally:
            _signal.signal(_signal.SIGINT, _end)  # while the interpreter shuts down
    except KeyboardInterrupt:
        _end()


if __name__ == "__main__":
    sys.exit(main())
