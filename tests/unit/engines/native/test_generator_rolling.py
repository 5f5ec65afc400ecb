"""A window that rolls: right however long it runs, and no dearer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.patience import PATIENCE_S
from tests.straight import Session
from tests.stream_sessions import FAMILIES, allocated_by, session, some_tokens, steps, tiny

from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import CacheAttention, Floats
from edgekit.units import KIB

WINDOW, SINKS = 192, 4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: tiny(folder, name) for name in FAMILIES}


@pytest.mark.parametrize(("sinks", "chunk"), [(4, 12), (0, 5), (15, 1)])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_as_with_all_keys_kept_and_turned_anew(
    models: dict[str, Path], name: str, sinks: int, chunk: int
) -> None:
    """Sixteen cells, sixty tokens, in one prompt and then one by one."""
    tokens = some_tokens(60, seed=sinks)
    setup = {"rolling": True, "sinks": sinks}
    with session(models[name], window=16, chunk=chunk, setup=setup) as engine:
        ours = steps(engine, tokens, prompt=40)
    theirs = Session(models[name], window=16, sinks=sinks, rolling=True).logits(tokens)[39:]
    np.testing.assert_allclose(ours, theirs, atol=5e-5)


def test_windows_that_are_wider_than_the_session(models: dict[str, Path]) -> None:
    """gemma3's own 8 tokens in a session of 6: all layers roll, with sinks, each turning as it was taught."""
    tokens = some_tokens(30)
    with session(models["gemma3"], window=6, setup={"rolling": True, "sinks": 2}) as engine:
        ours = steps(engine, tokens)
    theirs = Session(models["gemma3"], window=6, sinks=2, rolling=True).logits(tokens)
    np.testing.assert_allclose(ours, theirs, atol=5e-5)


def test_far_from_the_beginning(models: dict[str, Path]) -> None:
    """After millions of tokens a place is still told to a small part of a turn.

    What was before has no part in it any more when three layers have passed on 15 tokens each.
    """
    tokens = some_tokens(60)
    with session(models["llama"], window=16, setup={"rolling": True}) as engine:
        near = steps(engine, tokens)
        engine.reset()
        engine.position = 2**24  # reading that many tokens would take too long
        far = steps(engine, tokens)
    np.testing.assert_allclose(far[48:], near[48:], atol=1e-4)


class Counted:
    """The kernels, with a count of the cells that are looked at."""

    def __init__(self) -> None:
        self._real = choose_kernels()
        self.cells = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def attend(self, span: CacheAttention, scratch: Floats, first: int, last: int) -> None:
        self.cells += span.cells
        self._real.attend(span, scratch, first, last)


def test_eight_windows_are_as_cheap_as_two(tmp_path: Path) -> None:
    """Memory and work, window by window: time is measured in benchmarks/rolling_window.py.

    In a process of its own: in this one other tests have left memory that may come and go.
    """
    path = tiny(tmp_path, "llama", layers=1)
    code = f"from tests.unit.engines.native.test_generator_rolling import eight_windows; eight_windows({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=Path(__file__).parents[4],
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    cells, resident = json.loads(done.stdout)
    assert len(set(cells[2:])) == 1
    assert cells[1] <= cells[2] == WINDOW * WINDOW  # tokens x what each looks at
    # Some 50 bytes for each of 1,152 tokens, beside the 54 KiB of free tuples that Python keeps for itself. A cache
    # that grew with the tokens would take 400 KiB.
    assert max(resident[2:]) - resident[1] < 256 * KIB


def eight_windows(path: str) -> None:
    """Prints what each window looked at, and what was resident then."""
    kernels: Any = Counted()
    resident, cells = [], []
    setup = {"rolling": True, "sinks": SINKS, "threads": 1, "keep_bytes": None}
    with session(Path(path), window=WINDOW, cache="q8_0", setup=setup, kernels=kernels) as engine:
        allocated = allocated_by(engine)
        for window in range(8):
            kernels.cells = 0
            for token in some_tokens(WINDOW, seed=window):
                engine.feed((token,))
            cells.append(kernels.cells)
            resident.append(_resident_bytes())
        assert allocated_by(engine) == allocated
        assert engine.position == 8 * WINDOW
    print(json.dumps([cells, resident]))


def _resident_bytes() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("resident memory is read from /proc")
    result = re.search(r"VmRSS:\s+(\d+)", status.read_text())
    assert result is not None
    return int(result[1]) * KIB
