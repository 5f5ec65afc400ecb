"""Memory of TokenMean with a table of 7B size, measured in its own process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.embed_tables import random_row, write_table
from tests.header_files import ARRAY, INT32, STRING, key
from tests.patience import PATIENCE_S
from tests.thoroughness import LONG

from edgekit.formats.dtype import by_name
from edgekit.units import KIB

ROWS, WIDTH = 152_064, 3_584  # Qwen2 7B
TOKENS = 30_000  # of the vocabulary: one pointer per token is more than `scan_header` may hold
# numpy needs fixed buffers to unpack that the C kernels do not.
LIMIT_BYTES = {"native": 100 * KIB, "numpy": 160 * KIB}

CHILD = """
import gc, json, sys, tracemalloc
from pathlib import Path
import numpy as np
from edgekit.engines.native.file import WeightFile
from edgekit.engines.native.kernels import choose_kernels
from edgekit.machine.monitor import Monitor
from edgekit.engines.native.token_mean import TABLE, TokenMean
from edgekit.engines.native.file import Limits
from edgekit.engines.native.file import scan_header

path, kernels, tokens = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])

def native_bytes():
    "Memory of the C extension, which tracemalloc does not see."
    if kernels != "native":
        return 0
    from edgekit.engines.native.kernels._native import held_bytes
    return held_bytes()

def resident():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return int(fields["VmHWM"].split()[0]) * 1024

def embed(monitor, peaks):
    with WeightFile(path, Limits()) as file:
        header = scan_header(file, selects=lambda name: name == TABLE)
        peaks["scan_header"] = tracemalloc.get_traced_memory()[1]
        mean = TokenMean(file, header, kernels=choose_kernels(kernels), monitor=monitor)
        del header
        tracemalloc.reset_peak()
        into = np.empty((1, mean.width), np.float32)
        for _ in range(3):
            mean.encode([tokens], into, lambda share: monitor.check())
        peaks["mean"] = tracemalloc.get_traced_memory()[1] + native_bytes()
        mean.close()
        return into

embed(Monitor(critical_bytes=0), {})  # allocate modules and caches first
gc.collect()
before_rss = resident() if sys.platform == "linux" else 0
tracemalloc.start(1)
before, peaks = tracemalloc.get_traced_memory()[0], {}
into = embed(Monitor(budget_bytes=200 * 1024, critical_bytes=0), peaks)
print(json.dumps({
    **{name: peak - before for name, peak in peaks.items()},
    "rss": resident() - before_rss if sys.platform == "linux" else 0,
    "sum": float(into.sum()),
}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "model.gguf"
    random = np.random.default_rng(1)
    rows = {n: random_row(by_name("Q4_K"), WIDTH, random) for n in (0, 1_000, ROWS - 1)}
    keys = [
        key("tokenizer.ggml.tokens", ARRAY, (STRING, [f"token{n}" for n in range(TOKENS)])),
        key("tokenizer.ggml.token_type", ARRAY, (INT32, [1] * TOKENS)),
        key("tokenizer.ggml.merges", ARRAY, (STRING, [f"a{n} b{n}" for n in range(TOKENS)])),
    ]
    write_table(path, "Q4_K", (ROWS, WIDTH), rows, keys=keys, others=339)
    return path


@pytest.mark.parametrize("kernels", LIMIT_BYTES if LONG else ["native"])
def test_token_mean_memory_is_within_its_limits(kernels: str, model: Path) -> None:
    if kernels == "native" and not importlib.util.find_spec(
        "edgekit.engines.native.kernels._native"
    ):
        pytest.skip("installed without a compiler")
    tokens = json.dumps([0, 1_000, ROWS - 1, 5] * 128)
    process = subprocess.run(
        [sys.executable, "-c", CHILD, str(model), kernels, tokens],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert process.returncode == 0, process.stderr[-2_000:]
    peaks = json.loads(process.stdout)
    print(
        f"{kernels}: {', '.join(f'{name} {peaks[name] / KIB:.1f} KiB' for name in peaks if name != 'sum')}"
    )
    assert peaks["sum"] != 0
    assert peaks["scan_header"] < 100 * KIB
    assert peaks["mean"] < LIMIT_BYTES[kernels]
    assert peaks["rss"] < 1024 * KIB  # whole pages, and the memory of tracemalloc itself
