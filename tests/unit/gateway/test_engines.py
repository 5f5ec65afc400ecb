"""Engines behind the gateway: what is checked before their start, and what clients see of their end."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from tests.patience import PATIENCE_S
from tests.runnable import write_chatting

from edgekit.engines.program import Ended, LocalWeights
from edgekit.errors import EdgekitError, NotFoundError
from edgekit.gateway.engines import EngineHandle, checker


def test_files_that_can_be_read_pass(tmp_path: Path) -> None:
    model = write_chatting(tmp_path / "a.gguf")
    checker(LocalWeights(model=model, projector=model, adapters=(model,)))()
    checker(LocalWeights(model=Path(), name="hf.co/of-the-program"))()


def test_file_that_is_gone_is_named_and_no_other(tmp_path: Path) -> None:
    model, gone = write_chatting(tmp_path / "a.gguf"), tmp_path / "a2.gguf"
    for weights in (LocalWeights(model=gone), LocalWeights(model=model, projector=gone)):
        with pytest.raises(NotFoundError) as caught:
            checker(weights)()
        assert str(caught.value) == f"{gone} does not exist any more"


def test_file_that_was_cut_off_does_not_pass(tmp_path: Path) -> None:
    model = write_chatting(tmp_path / "a.gguf")
    model.write_bytes(model.read_bytes()[:5000])
    with pytest.raises(EdgekitError):
        checker(LocalWeights(model=model))()


class Dead:
    """A process that has died, and its guard."""

    reason = ""

    def poll(self) -> Ended:
        return Ended(
            exit_code=1, signal=None, why="it exited (code 1)", last_words="12:00 a\nsecret"
        )

    wait = poll


def told(guard: Any) -> tuple[str, str]:
    """What clients and the terminal get."""
    texts: list[tuple[str, str]] = []
    ended = threading.Event()

    def tell(reason: str, text: str) -> None:
        texts.append((reason, text))
        ended.set()

    EngineHandle(cast("Any", Dead()), guard, ExitStack()).on_end(tell)
    assert ended.wait(PATIENCE_S)
    return texts[0]


def test_log_of_an_engine_that_died_is_for_the_terminal_only() -> None:
    assert told(Dead()) == (
        "it exited (code 1)",
        "it exited (code 1); last output: 12:00 a\nsecret",
    )
    guard = Dead()
    guard.reason = "memory ran out"
    assert told(guard) == ("memory ran out", "memory ran out")
