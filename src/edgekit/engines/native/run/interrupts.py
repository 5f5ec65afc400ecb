"""Ctrl-C in the middle of a step -> Ctrl-C at the next look at the clock.

Python raises between any two instructions. Between those that wake a thread and those that count it, that would leave
threads at work on buffers that are gone. So the signal waits some milliseconds, until all is in order.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_HELD = ("SIGINT", "SIGTERM")
Handler = Callable[[int, FrameType | None], object]


class Interrupts:
    """Signals that have come, and what their own handlers would have done at once."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        self._came: list[int] = []

    def come(self, number: int, frame: FrameType | None) -> None:
        """A handler. The second of a kind is not held: whoever presses twice has waited long enough."""
        if number in self._came:
            self._call(number, frame)
        self._came.append(number)

    def check(self) -> None:
        """Does what was held back; mostly that is to raise KeyboardInterrupt."""
        while self._came:
            self._call(self._came.pop(0), None)

    def _call(self, number: int, frame: FrameType | None) -> None:
        self.handlers[number](number, frame)


@contextmanager
def held_back() -> Iterator[Interrupts]:
    """While in it, signals that Python handles wait for `check`, and at the latest for the end.

    In other threads than the first, which get no signals, it does nothing.
    """
    held = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    try:
        for name in _HELD:
            number = getattr(signal, name)
            handler = signal.getsignal(number)
            if callable(handler):
                held.handlers[number] = handler
                signal.signal(number, held.come)
        yield held
    finally:
        for number, handler in held.handlers.items():
            signal.signal(number, handler)
        held.check()
