"""Adding an architecture is a single edit: with one more record in architectures.json every engine has a bill of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RECORD = {
    "gguf": ["plover"],
    "config": ["plover"],
    "layers": {"arrange": {"rule": "windows", "period": 2}},
    "tensors": {"head_norm": "head"},
    "library": {"window": 128},
    "conversion": {"keeps_windows": True},
    "llamacpp": {"graph": "llama"},
    "mlx": {"own_cache": True},
    "vllm": {"classes": ["PloverForCausalLM"]},
}
CONFIG = {
    "architectures": ["PloverForCausalLM"],
    "model_type": "plover",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# In a process of its own, because records are read once.
PROGRAM = """
import json, sys
from pkgutil import get_data
from edgekit.cli import main
from edgekit.formats import records

def with_record(package, file):
    read = json.loads(get_data(package, file))
    if file == "architectures.json":
        read["records"].append(json.loads(sys.argv[1]))
    return json.dumps(read)

records.get_data = with_record
sys.exit(main(sys.argv[2:]))
"""


LAYER = (
    2 * 512 * 512 + 2 * 512 * 256 + 2 * 64 + 3 * 512 * 1024 + 2 * 512
)  # attention, its norms, feed-forward, norms
WEIGHTS = 4 * LAYER + 2 * 1024 * 512 + 512  # and embedding, head, their norm
KV = 2 * 4 * 64 * 2  # bytes of one token in one layer: K and V of 4 heads


def estimate(
    tmp_path: Path, engine: str, record: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    words = ("estimate", str(config), "-c", "4096", "--engine", engine, "--json")
    program = (sys.executable, "-c", PROGRAM, json.dumps(record), *words)
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("engine", "figures"),
    [
        # every second layer slides, over 128 tokens: 4 sequences and a micro-batch of 512 make 1,024 cells
        ("llama.cpp", {"kv_bytes": 2 * 4096 * KV, "kv_swa_bytes": 2 * 1024 * KV}),
        ("vllm", {"model_bytes": 2 * WEIGHTS, "groups": [2, 2]}),
        ("mlx", {"kv_bytes": 2 * 4096 * KV, "kv_swa_bytes": 2 * 128 * KV}),
    ],
)
def test_one_record_gives_every_engine_a_bill(
    tmp_path: Path, engine: str, figures: dict[str, Any]
) -> None:
    done = estimate(tmp_path, engine, RECORD)
    assert done.returncode == 0, done.stderr
    bill = json.loads(done.stdout)
    assert {name: bill[name] for name in figures} == figures
    assert bill["basis"] == "modelled"  # not assumed, as that of an unknown architecture


def test_without_the_record_the_architecture_is_unknown(tmp_path: Path) -> None:
    done = estimate(tmp_path, "mlx", {"config": ["puffin"]})
    assert (done.returncode, "Model type plover not supported" in done.stderr) == (2, True)
