"""Work that waits for servers -> done a few at a time, by threads that do not keep a program from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 8  # connections: enough to hide round trips, few enough to be polite


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Results in order; work begins at once, an error is raised in its turn and no more is begun then.

    An executor of the standard library waits for its threads when a program is interrupted: up to the longest time-out.
    """
    futures: list[Future[Result]] = [Future() for _ in items]
    todo, lock, stop = iter(zip(items, futures, strict=True)), threading.Lock(), threading.Event()

    def run() -> None:
        while not stop.is_set():
            with lock:
                found = next(todo, None)
            if found is None:
                return
            item, future = found
            try:
                future.set_result(work(item))
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
                future.set_exception(error)

    for _ in range(min(AT_ONCE, len(items))):
        threading.Thread(target=run, daemon=True).start()
    return _in_turn(futures, stop)


def _in_turn(futures: list[Future[Result]], stop: threading.Event) -> Iterator[Result]:
    try:
        for future in futures:
            yield future.result()
    finally:
        stop.set()
