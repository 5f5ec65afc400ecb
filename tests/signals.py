"""Signals that this process inherited as ignored, as under nohup or in a background job of a script."""

from __future__ import annotations

import signal

_NAMES = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")


def restore_for_children() -> None:
    """Gives every child that is started from now on the default handling of these signals.

    An ignored signal stays ignored in a child; a signal with a handler has its default there again.
    So the tests need no launcher. The handler does nothing: the run still survives the end of its
    terminal. Only SIGINT interrupts, as tests send it to this process as well.
    """
    for name in _NAMES:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if interrupt else lambda *_: None)
