"""tokenizer_cost_bytes: never below the memory measured in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.thoroughness import LONG, costly, sampled
from tests.vocabularies import find_vocabulary

# A small and a large vocabulary of each kind; other kinds are built like one of these.
NAMES = ["bert-bge", "qwen2", "gpt-2", "llama-spm", "nomic-bert-moe", "gemma-4"]
NAMES += ["llama-bpe", "command-r", "baichuan"] if LONG else []

CHILD = """
import json, sys
from pathlib import Path

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

from edgekit.engines.native.file import WeightFile
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.vocabulary import read_vocabulary
from edgekit.engines.native.tokenizer.kinds import tokenizer_cost_bytes
from edgekit.engines.native.file import Limits
from edgekit.engines.native.file import scan_header

with WeightFile(Path(sys.argv[1]), Limits()) as file:
    header = scan_header(file)
    estimated = tokenizer_cost_bytes(header)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    tokenizer = build_tokenizer(read_vocabulary(file, header))
    peak = status("VmHWM") - before
worst = ["\\U0001f469\\u200d\\U0001f4bb" * 9000, "e\\u0302" * 9000, "a" * 17000, "!?" * 9000, "w " * 9000]
for text in worst:
    tokenizer.encode(text, limit_tokens=2048, truncate=True)
print(json.dumps([*estimated, status("VmRSS") - before, max(peak, status("VmHWM") - before)]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@costly
@pytest.mark.parametrize("name", sampled(NAMES, each=2))
def test_tokenizer_cost_is_never_below_the_measurement(name: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", CHILD, str(find_vocabulary(name))],
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    estimated_resident, estimated_peak, resident, peak = json.loads(process.stdout)
    message = f"{name}: estimated {estimated_resident:,} {estimated_peak:,}, measured {resident:,} {peak:,}"
    assert resident <= estimated_resident, message
    assert peak <= estimated_peak, message
    assert estimated_peak < 2.2 * peak, message  # the estimate is not far too high either
