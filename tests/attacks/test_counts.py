"""Counts in config.json that size lists and loops: each gives an answer or an EdgekitError within a memory limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.recorded import TRUTH, config_header
from tests.thoroughness import LONG

from edgekit.errors import HeaderLimitError
from edgekit.model import read_geometry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses Linux memory limits")

LIMIT_BYTES = 4_000_000 * 1024  # ulimit -v 4000000
SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100,
         "intermediate_size": 128, "max_position_embeddings": 2048}  # fmt: skip
DEEPSEEK = SMALL | {"model_type": "deepseek_v3", "num_hidden_layers": 2, "kv_lora_rank": 16, "q_lora_rank": 16,
                    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
                    "n_shared_experts": 1, "num_nextn_predict_layers": 1}  # fmt: skip
QWEN35 = SMALL | {"model_type": "qwen3_5_text", "num_hidden_layers": 4, "head_dim": 16, "full_attention_interval": 4,
                  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2,
                  "linear_num_value_heads": 4, "linear_value_head_dim": 16, "mtp_num_hidden_layers": 1}  # fmt: skip
GEMMA3N = SMALL | {"model_type": "gemma3n_text", "num_hidden_layers": 10, "head_dim": 16, "sliding_window": 128,
                   "num_kv_shared_layers": 5, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 100,
                   "altup_num_inputs": 4, "laurel_rank": 8,
                   "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2}  # fmt: skip
LFM2 = SMALL | {"model_type": "lfm2", "num_hidden_layers": 4, "conv_L_cache": 3, "full_attn_idxs": [1, 3],
                "block_ff_dim": 128, "block_multiple_of": 32}  # fmt: skip
CONFIGS = (DEEPSEEK, QWEN35, GEMMA3N, LFM2)

# Sets every number and list of a config to each of VALUES (or to every `each`-th, in turn), and estimates with each
# engine. Prints every exception that is not an EdgekitError.
CHILD = """
import copy, json, resource, sys, traceback
limit, each = map(int, sys.argv[1:])
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.mlx import estimate as mlx
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import EdgekitError
from edgekit.model import open_config
from edgekit.bill.types import Load

resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
VALUES = (2**31 - 1, 2**32 - 1, 2**63, 1025, -1, 0, 1, True, "7", 1.5, float("nan"), float("inf"), 1e300,
          [1], [2**31 - 1] * 3, {}, None)

def places(value, path=()):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, (int, float, list)) and not isinstance(value, bool):
        yield path

def estimate_all(config):
    model = open_config(config).model
    for engine, setup in ((llamacpp, LlamaCppSetup()), (vllm, VllmSetup()), (mlx, MlxSetup())):
        try:
            engine.estimate(model, Load(context_tokens=2048), setup)
        except EdgekitError:
            pass

for line in sys.stdin:
    config = json.loads(line)
    for turn, path in enumerate(places(config)):
        for value in VALUES[turn % each :: each]:
            changed = copy.deepcopy(config)
            inner = changed
            for name in path[:-1]:
                inner = inner[name]
            inner[path[-1]] = value
            try:
                estimate_all(changed)
            except EdgekitError:
                pass
            except (Exception, MemoryError) as error:
                print(config.get("model_type"), path, repr(value)[:40], traceback.format_exc().splitlines()[-1])
print("done")
"""


def test_counts_are_answered_or_refused_within_a_memory_limit() -> None:
    configs = [json.dumps(config) for config in CONFIGS]
    each = 1 if LONG else 3  # of the values; the next number or list takes others
    if LONG and (TRUTH / "configs").is_dir():
        result = sorted((TRUTH / "configs").glob("*.json"))[::20]
        configs += [json.dumps(json.loads(path.read_text())) for path in result]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(LIMIT_BYTES), str(each)],
        input="\n".join(configs), capture_output=True, text=True, check=False, timeout=3 * PATIENCE_S,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def test_prediction_layers_beyond_the_limit_end_in_a_message(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DEEPSEEK | {"num_nextn_predict_layers": 2**31 - 1}))
    script = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))\n"
        "from edgekit.cli import main\n"
        "for words in (['estimate'], ['check', '--ram', '8G']):\n"
        "    print(main([words[0], sys.argv[1], '--engine', 'llama.cpp', *words[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.stdout == f"{HeaderLimitError.exit_code}\n" * 2
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(
        "num_nextn_predict_layers: 2,147,483,647 is over the limit of 512" in line for line in lines
    )


def test_layers_and_prediction_layers_share_one_limit() -> None:
    config = DEEPSEEK | {"num_hidden_layers": 500, "num_nextn_predict_layers": 13}
    with pytest.raises(HeaderLimitError, match=r"513 is over the limit of 512"):
        read_geometry(config_header(config))
