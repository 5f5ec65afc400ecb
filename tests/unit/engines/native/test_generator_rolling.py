"""A rolling window: correct logits after any number of tokens, at constant memory and work."""

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
from tests.reference_model import ReferenceSession
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
def test_rolling_logits_equal_the_reference_model(
    models: dict[str, Path], name: str, sinks: int, chunk: int
) -> None:
    """60 tokens in 16 cells: a prompt of 40, then one by one. The reference model keeps all keys and rotates them again."""
    tokens = some_tokens(60, seed=sinks)
    setup = {"rolling": True, "sinks": sinks}
    with session(models[name], window=16, chunk=chunk, setup=setup) as engine:
        actual = steps(engine, tokens, prompt=40)
    expected = ReferenceSession(models[name], window=16, sinks=sinks, rolling=True).logits(tokens)[
        39:
    ]
    np.testing.assert_allclose(actual, expected, atol=5e-5)


def test_rolling_context_below_the_sliding_window(models: dict[str, Path]) -> None:
    """gemma3's window of 8 in a context of 6: all layers roll, with sinks, each with its own rotary base."""
    tokens = some_tokens(30)
    with session(models["gemma3"], window=6, setup={"rolling": True, "sinks": 2}) as engine:
        actual = steps(engine, tokens)
    expected = ReferenceSession(models["gemma3"], window=6, sinks=2, rolling=True).logits(tokens)
    np.testing.assert_allclose(actual, expected, atol=5e-5)


def test_rolling_logits_are_accurate_at_position_2_to_24(models: dict[str, Path]) -> None:
    """The rotary angle of a position is still accurate after millions of tokens.

    Three layers of 15 earlier tokens each reach back 45 tokens: from the 48th on, the start does not matter.
    """
    tokens = some_tokens(60)
    with session(models["llama"], window=16, setup={"rolling": True}) as engine:
        near = steps(engine, tokens)
        engine.reset()
        engine.position = 2**24  # reading that many tokens would take too long
        far = steps(engine, tokens)
    np.testing.assert_allclose(far[48:], near[48:], atol=1e-4)


class CountingKernels:
    """The kernels, with a count of the cells that attention reads."""

    def __init__(self) -> None:
        self._real = choose_kernels()
        self.cells = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def attend(self, span: CacheAttention, scratch: Floats, first: int, last: int) -> None:
        self.cells += span.cells
        self._real.attend(span, scratch, first, last)


def test_rolling_memory_and_work_are_constant(tmp_path: Path) -> None:
    """Compares eight windows; time is measured in benchmarks/rolling_window.py.

    In its own process: in this one, memory of other tests may be allocated or freed meanwhile.
    """
    path = tiny(tmp_path, "llama", layers=1)
    code = f"from tests.unit.engines.native.test_generator_rolling import print_cells_and_resident_bytes; print_cells_and_resident_bytes({str(path)!r})"
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
    assert cells[1] <= cells[2] == WINDOW * WINDOW  # tokens x cells read by each
    # Measured: about 50 bytes for each of 1,152 tokens, plus 54 KiB of free tuples that Python keeps. A cache that
    # grew with the tokens would take 400 KiB.
    assert max(resident[2:]) - resident[1] < 256 * KIB


def print_cells_and_resident_bytes(path: str) -> None:
    """Prints, for each of eight windows, the cells read in it and the resident memory after it."""
    kernels: Any = CountingKernels()
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
