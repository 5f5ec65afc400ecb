"""Signals that this process inherited as ignored, for example under nohup or as a background job."""

from __future__ import annotations

import signal

_NAMES = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")


def restore_for_children() -> None:
    """Lets later children handle these signals by default.

    A child inherits ignored signals, but not handlers. So each ignored signal gets a handler that
    does nothing: the run itself still survives the end of its terminal. SIGINT gets the default
    handler, because tests send it to this process as well.
    """
    for name in _NAMES:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if interrupt else lambda *_: None)
