"""A 7B (4.2 GB; 0.9 GB in the normal run) generates text within an address space of 700 MB, libraries included."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.embed_models import seven_b
from tests.patience import PATIENCE_S
from tests.thoroughness import LONG

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="uses Linux memory limits"
)
ADDRESSES = 700 * 10**6
LAYERS = 28 if LONG else 4  # layers reuse the memory of the previous one

CHILD = """
import json, re, sys
from pathlib import Path
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.bill.types import Load
from edgekit.engines.native.sampler import Sampler
from edgekit.engines.chat import Sampling
from edgekit.engines.native.generator import open_stream
from edgekit.engines.native.text import generate

load, setup = Load(context_tokens=4096), StreamSetup(threads=2)
with open_stream(Path(sys.argv[1]), load=load, setup=setup) as engine:
    sampler = Sampler(Sampling(temperature=0), engine.vocabulary)
    tokens = list(generate(engine, [11, 12, 13, 14], sampler, max_tokens=2, stop=frozenset()))
    result = {"tokens": tokens, "planned": engine.plan.total_bytes, "cache": engine.cache_bytes}
status = open("/proc/self/status").read()
result["peak"] = int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024
print(json.dumps(result))
"""


def test_tokens_of_a_7b_within_700_mb_of_addresses(tmp_path: Path) -> None:
    """Two tokens: one after the prompt, one after the first."""
    path = seven_b(tmp_path / "seven.gguf", sparse=True, vocabulary=False, layers=LAYERS)
    assert path.stat().st_size > (4_200_000_000 if LONG else ADDRESSES)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES)),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    output = json.loads(done.stdout)
    assert len(output["tokens"]) == 2
    assert all(0 <= token < 152_064 for token in output["tokens"])
    # For each layer 4,096 cells x 2 x 512 numbers of 2 bytes each; and some 30 MB of buffers.
    assert output["cache"] == LAYERS * 4096 * 2 * 512 * 2
    assert output["planned"] < output["cache"] + 40 * 10**6
    # The interpreter, numpy and the file's header are not in the bill.
    assert output["peak"] < output["planned"] + 60 * 10**6
