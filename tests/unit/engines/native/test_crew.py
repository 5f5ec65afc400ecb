"""Crew: tasks on several threads are all run, or all stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.threads import running, started_since

from edgekit.engines.native.crew import Crew, CrewMember, _find_blas, one_thread


def new_worker() -> CrewMember:
    return CrewMember(np.empty(1, np.uint8), np.empty(1, np.float32), np.empty(1, np.float32))


@pytest.fixture(params=[1, 2, 4])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    result = Crew([new_worker() for _ in range(request.param)])
    yield result
    result.close()


class BrokenError(Exception):
    pass


def test_crew_runs_every_task_once(crew: Crew) -> None:
    for count in (1, 2, 3, 100):
        assert sorted(tasks_run(crew, count)) == list(range(count))


def tasks_run(crew: Crew, count: int) -> list[int]:
    done: list[int] = []
    crew.run(
        [(lambda _worker, first, _last: done.append(first), n, n + 1) for n in range(count)],
        lambda _left: None,
    )
    return done


def test_crew_without_tasks(crew: Crew) -> None:
    crew.run([], lambda _left: None)


def test_crew_threads_share_no_buffers() -> None:
    crew = Crew([new_worker() for _ in range(3)])
    in_use: set[int] = set()  # ids: two workers with equal buffers are still two

    def step(worker: CrewMember, _first: int, _last: int) -> None:
        assert id(worker) not in in_use
        in_use.add(id(worker))
        time.sleep(0.001)
        in_use.remove(id(worker))

    crew.run([(step, n, n) for n in range(60)], lambda _left: None)
    crew.close()


@pytest.mark.parametrize("wrong", [0, 5, 19])
def test_crew_error_in_a_task_stops_the_run_and_reaches_the_caller(crew: Crew, wrong: int) -> None:
    running = 0

    def step(_worker: CrewMember, first: int, _last: int) -> None:
        nonlocal running
        running += 1
        try:
            if first == wrong:
                raise BrokenError(first)
            time.sleep(0.001)
        finally:
            running -= 1

    with pytest.raises(BrokenError):
        crew.run([(step, n, n) for n in range(20)], lambda _left: None)
    assert running == 0, "a thread still works after run() has ended"
    assert sorted(tasks_run(crew, 9)) == list(range(9))


def test_crew_callback_that_raises_stops_all_threads(crew: Crew) -> None:
    begun: list[int] = []
    caller = threading.get_ident()

    def step(_worker: CrewMember, first: int, _last: int) -> None:
        begun.append(first)
        if threading.get_ident() != caller:
            wait_until(lambda: crew._stopping)

    def pause(_left: int) -> None:
        raise BrokenError

    with pytest.raises(BrokenError):
        crew.run([(step, n, n) for n in range(200)], pause)
    assert len(begun) == len(set(begun)) <= 4


def test_crew_reports_to_the_caller_while_other_threads_work() -> None:
    crew = Crew([new_worker(), new_worker()])
    caller = threading.get_ident()
    reports: list[int] = []
    other_begun = threading.Event()

    def step(_worker: CrewMember, _first: int, _last: int) -> None:
        if threading.get_ident() == caller:
            assert other_begun.wait(PATIENCE_S)
        else:
            other_begun.set()
            wait_until(lambda: len(reports) >= 4)

    crew.run([(step, n, n) for n in range(2)], reports.append)
    crew.close()


def test_crew_close_ends_its_threads() -> None:
    before = running()
    crew = Crew([new_worker() for _ in range(4)])
    assert started_since(before) == 3
    crew.close()
    crew.close()
    assert started_since(before) == 0


def test_one_thread_limits_blas_and_restores_it() -> None:
    blas = _find_blas()
    if blas is None:
        pytest.skip("numpy has another BLAS than OpenBLAS here")
    before = blas.get()
    blas.set(2)
    try:
        with one_thread():
            with one_thread():
                assert blas.get() == 1
            assert blas.get() == 1
        assert blas.get() == 2
    finally:
        blas.set(before)
