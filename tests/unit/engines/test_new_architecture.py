"""An architecture is added with a single record in architectures.json: every engine then has a bill for it."""

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
# Run in a process of its own, because records are read only once.
PROGRAM = """
import json, sys
from pkgutil import get_data
from edgekit.cli import main
from edgekit.formats import records

def with_record(package, file):
    data = json.loads(get_data(package, file))
    if file == "architectures.json":
        data["records"].append(json.loads(sys.argv[1]))
    return json.dumps(data)

records.get_data = with_record
sys.exit(main(sys.argv[2:]))
"""


# Parameters: attention and its two norms, feed-forward, two norms.
LAYER = 2 * 512 * 512 + 2 * 512 * 256 + 2 * 64 + 3 * 512 * 1024 + 2 * 512
WEIGHTS = 4 * LAYER + 2 * 1024 * 512 + 512  # with embedding, head and final norm
KV = 2 * 4 * 64 * 2  # bytes per token in one layer: K and V of 4 heads with 64 values in bf16


def estimate(
    tmp_path: Path, engine: str, record: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    arguments = ("estimate", str(config), "-c", "4096", "--engine", engine, "--json")
    program = (sys.executable, "-c", PROGRAM, json.dumps(record), *arguments)
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("engine", "figures"),
    [
        # every second layer has a window of 128 tokens: 4 sequences and a micro-batch of 512 need 1,024 cells
        ("llama.cpp", {"kv_bytes": 2 * 4096 * KV, "kv_swa_bytes": 2 * 1024 * KV}),
        ("vllm", {"model_bytes": 2 * WEIGHTS, "groups": [2, 2]}),
        ("mlx", {"kv_bytes": 2 * 4096 * KV, "kv_swa_bytes": 2 * 128 * KV}),
    ],
)
def test_one_record_gives_every_engine_a_bill(
    tmp_path: Path, engine: str, figures: dict[str, Any]
) -> None:
    process = estimate(tmp_path, engine, RECORD)
    assert process.returncode == 0, process.stderr
    bill = json.loads(process.stdout)
    assert {name: bill[name] for name in figures} == figures
    assert bill["basis"] == "modelled"  # an unknown architecture's is "assumed"


def test_architecture_without_a_record_is_unknown(tmp_path: Path) -> None:
    process = estimate(tmp_path, "mlx", {"config": ["puffin"]})
    assert process.returncode == 2
    assert "Model type plover not supported" in process.stderr
