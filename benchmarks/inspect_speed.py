"""The cost of reading a header: EdgeKit, gguf-py's reader and hf-mem, in one run on one machine.

Usage: make bench (installs the others). Prints the tables of benchmarks/README.md.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loopback import Hub, serve

PYTHON = sys.executable
EDGEKIT = [PYTHON, "-m", "edgekit"]
GGUF_READER = "import sys, gguf; print(len(gguf.GGUFReader(sys.argv[1]).tensors))"
# hf-mem has a fixed hub address: its requests are redirected to loopback.
HF_MEM = """
import sys
import httpx2
address, build = sys.argv.pop(1), httpx2.AsyncClient.build_request
def redirected(self, method, url, **more):
    return build(self, method, str(url).replace("https://huggingface.co", address), **more)
httpx2.AsyncClient.build_request = redirected
from hf_mem.cli import main
main()
"""
RUNS = 5


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    peak_mb: float


def measure(
    command: list[str], environment: dict[str, str] | None = None, runs: int = RUNS
) -> Cost:
    """CPU seconds and peak memory of a child: the median of `runs`."""
    costs = [_once(command, environment) for _ in range(runs)]
    return Cost(
        statistics.median(c.cpu_s for c in costs), statistics.median(c.peak_mb for c in costs)
    )


def _once(command: list[str], environment: dict[str, str] | None) -> Cost:
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **(environment or {})},
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            sys.exit(f"{command}: {errors.read().decode()[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def local_table(path: Path) -> None:
    ours = measure([*EDGEKIT, "inspect", str(path)])
    rows = [
        ("edgekit inspect", ours),
        ("edgekit --help", measure([*EDGEKIT, "--help"])),
        ("gguf.GGUFReader", measure([PYTHON, "-c", GGUF_READER, str(path)], runs=1)),
    ]
    print("| local file | CPU s | peak MB | CPU, times edgekit inspect |\n|---|---|---|---|")
    for name, cost in rows:
        ratio = cost.cpu_s / ours.cpu_s
        print(f"| {name} | {cost.cpu_s:.2f} | {cost.peak_mb:.0f} | {ratio:.2f} |")


def remote_row(hub: Hub, name: str, command: list[str], header_bytes: int | None) -> None:
    hub.reset()
    cost = measure(command, {"HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_TELEMETRY": "1"}, runs=1)
    over = "" if header_bytes is None else f"{(hub.sent_bytes - header_bytes) / 2**20:+.2f}"
    print(
        f"| {name} | {hub.requests} | {hub.ranges} | {hub.sent_bytes:,} | {over} | {cost.cpu_s:.2f} |"
    )


def remote_table(hub: Hub, repo: str, path: Path) -> None:
    header = header_size(path)
    light = [*EDGEKIT, "inspect", f"{repo}:Q4_K_M", "--no-cache"]
    print(
        f"\n| {repo}, header {header:,} bytes | requests | ranged | bytes received | MiB over the header | CPU s |"
    )
    print("|---|---|---|---|---|---|")
    remote_row(hub, "edgekit inspect --light", [*light, "--light"], None)
    remote_row(hub, "edgekit inspect", light, header)
    if shutil.which("hf-mem", path=str(Path(PYTHON).parent)):
        command = [PYTHON, "-c", HF_MEM, hub.address, "--model-id", repo, "--gguf-file", path.name]
        remote_row(hub, "hf-mem", command, header)


def header_size(path: Path) -> int:
    done = subprocess.run(
        [*EDGEKIT, "inspect", str(path), "--json"], check=True, capture_output=True
    )
    size: int = json.loads(done.stdout)["header_bytes"]
    return size


def write_gguf(folder: Path, model: str, *, tokens: int, merges: int) -> Path:
    """Runs in a child, because the peak memory of later children would include that of this process."""
    folder.mkdir()
    command = [PYTHON, str(Path(__file__).with_name("vocabulary.py")), str(folder), model, "Q4_K_M"]
    output = subprocess.run(
        [*command, str(tokens), str(merges)], check=True, capture_output=True, text=True
    )
    return Path(output.stdout.strip())


def write_safetensors_70b(folder: Path) -> None:
    """The config and index of a 70B model, with sparse shards."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "max_position_embeddings": 131072,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
             "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm")  # fmt: skip
    shards = [f"model-{i + 1:05}-of-00030.safetensors" for i in range(30)]
    names = [f"model.layers.{i}.{part}.weight" for i in range(80) for part in parts]
    index = {
        "metadata": {"total_size": 141107412992},
        "weight_map": {name: shards[i * 30 // len(names)] for i, name in enumerate(names)},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    for shard in shards:
        with (folder / shard).open("wb") as file:
            file.truncate(141107412992 // 30)


def write_mlx_7b(folder: Path) -> None:
    """The config and index of an MLX conversion, with a sparse file of 4 GB."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 32768,
        "quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=4))
    names = [
        f"model.layers.{i}.{part}"
        for i in range(28)
        for part in ("q.weight", "q.scales", "q.biases") * 7
    ]
    weight_map = {f"{name}.{i}": "model.safetensors" for i, name in enumerate(names)}
    total = {"total_size": 4284211200, "total_parameters": 7615616512}
    index = {"metadata": total, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=4))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(4_284_300_000)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder, other = Path(scratch) / "llama", Path(scratch) / "gemma"
        llama = write_gguf(folder, "llama-3.1-8b", tokens=128_256, merges=280_147)
        gemma = write_gguf(other, "gemma-3-4b", tokens=262_144, merges=514_906)
        local_table(llama)
        big = Path(scratch) / "safetensors"
        write_safetensors_70b(big)
        small = Path(scratch) / "mlx"
        write_mlx_7b(small)
        repositories = {
            "bench/llama": folder,
            "bench/gemma": other,
            "bench/70b": big,
            "bench/mlx-7b": small,
        }
        with serve(repositories) as hub:
            remote_table(hub, "bench/llama", llama)
            remote_table(hub, "bench/gemma", gemma)
            print("\n| safetensors, --light | requests | ranged | bytes received | | CPU s |")
            print("|---|---|---|---|---|---|")
            for name, repo in (("70B in 30 shards", "bench/70b"), ("MLX 7B", "bench/mlx-7b")):
                remote_row(hub, name, [*EDGEKIT, "inspect", repo, "--light", "--no-cache"], None)


if __name__ == "__main__":
    main()
