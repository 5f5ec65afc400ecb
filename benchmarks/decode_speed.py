"""The speed of llama.cpp on this machine's CPU and the range that EdgeKit expects: needs xllamacpp and numpy.

    python benchmarks/decode_speed.py [MODEL:QUANT ...]

Models are recorded headers with an artificial vocabulary and random weights, in memory: the numbers do not affect the
speed. The best of seven runs counts: on a busy machine the threads of llama.cpp wait for each other.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.recorded import engine_models, header_bytes, models, padded

from edgekit.bill.types import Load, Moment
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.speed import sequence_run
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.speed import modelled_speed
from edgekit.machine.probes import detect
from edgekit.machine.types import Machine

DEFAULTS = ("llama-3.2-1b:Q8_0", "llama-3.2-1b:Q4_K_M", "qwen3-0.6b:Q8_0", "gemma-3-1b:Q8_0")
TRIES, PROMPT, NEW, CONTEXT = 7, 128, 8, 1024
_SPECIAL = 259  # three special tokens and one for every byte


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        _run(sys.argv[2], int(sys.argv[3]))
    machine = detect()
    threads = machine.cores or 1
    read = _read_bytes_per_s(threads)
    print(
        f"{machine.processor or machine.name}, {threads} cores, memory read at {read / 1e9:.1f} GB/s\n"
    )
    print("| model | decode | expected | prompt | expected |\n|---|---|---|---|---|")
    for name in sys.argv[1:] or DEFAULTS:
        model, quant = name.split(":")
        decode, prompt = _measure(model, quant, threads)
        speed = _expected(model, quant, machine, read)
        print(
            f"| {name} | {decode:.1f} | {_range(speed.decode)} | {prompt:.0f} | {_range(speed.prefill)} |"
        )


def _range(rates: tuple[float, float]) -> str:
    return f"{rates[0]:,.1f} to {rates[1]:,.1f}"


def _expected(name: str, quant: str, machine: Machine, read: float) -> Any:
    model, load, setup = engine_models()[name, quant], Load(context_tokens=CONTEXT), LlamaCppSetup()
    if machine.host is not None:
        machine = replace(machine, host=replace(machine.host, bandwidth_bytes_per_s=int(read)))
    bill = estimate(model, load, setup)
    moment = Moment(PROMPT + NEW // 2, prompt_tokens=PROMPT)
    return modelled_speed(sequence_run(model, load, setup, bill, machine), moment)


def _read_bytes_per_s(threads: int) -> float:
    import numpy as np

    parts = [np.ones(2**26, dtype=np.float32) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(TRIES):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = max(best, sum(part.nbytes for part in parts) / (time.perf_counter() - start))
    return best


def _measure(name: str, quant: str, threads: int) -> tuple[float, float]:
    """Runs in a new process; the file is in memory if /dev/shm exists."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        path = Path(folder) / "model.gguf"
        _write(path, name, quant)
        command = [sys.executable, __file__, "--run", str(path), str(threads)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    decode, prompt = json.loads(output.splitlines()[-1])
    return decode, prompt


def _run(path: str, threads: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = path, CONTEXT, 1
    params.n_gpu_layers, params.port, params.cache_ram_mib = 0, 0, 0
    params.cpuparams.n_threads = threads
    params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE
    server = xllamacpp.Server(params)
    prompt = [300 + index for index in range(PROMPT)]
    question = {"prompt": prompt, "n_predict": NEW, "ignore_eos": True, "cache_prompt": False}
    results = [server.handle_completions(question)["timings"] for _ in range(TRIES)]
    best = [max(item[f"{kind}_per_second"] for item in results) for kind in ("predicted", "prompt")]
    print("\n" + json.dumps(best), flush=True)
    sys.exit(0)


def _write(path: Path, name: str, quant: str) -> None:
    import numpy as np

    recorded = next(
        model for model in models() if (model["model"], model["quant"]) == (name, quant)
    )
    raw = header_bytes(recorded["header_without_vocabulary"])
    header = _with_vocabulary(raw, engine_models()[name, quant].geometry.vocabulary or 0)
    # Small bytes, so that no half or float is large or infinite.
    block = np.random.default_rng(0).integers(0, 0x30, 2**26, dtype=np.uint8).tobytes()
    remaining = recorded["data_section_bytes"]
    with path.open("wb") as out:
        out.write(header.ljust(padded(len(header)), b"\0"))
        while remaining > 0:
            remaining -= out.write(block[:remaining])


def _with_vocabulary(raw: bytes, count: int) -> bytes:
    """The header with an artificial vocabulary."""
    start, keys = 24, []
    for _ in range(struct.unpack_from("<Q", raw, 16)[0]):
        length = struct.unpack_from("<Q", raw, start)[0]
        name = raw[start + 8 : start + 8 + length]
        end = _value_end(
            raw, start + 12 + length, struct.unpack_from("<I", raw, start + 8 + length)[0]
        )
        if not name.startswith(b"tokenizer."):
            keys.append(raw[start:end])
        start = end
    keys += _vocabulary(count)
    return raw[:16] + struct.pack("<Q", len(keys)) + b"".join(keys) + raw[start:]


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def _value_end(raw: bytes, position: int, kind: int) -> int:
    if kind == 8:
        return position + 8 + int(struct.unpack_from("<Q", raw, position)[0])
    if kind != 9:
        return position + _SIZES[kind]
    item, count = struct.unpack_from("<IQ", raw, position)
    position += 12
    for _ in range(count):
        position = _value_end(raw, position, item)
    return position


def _vocabulary(count: int) -> Iterator[bytes]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"\u2581w{number}" for number in range(count - _SPECIAL)]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (count - _SPECIAL)]
    scores = [-float(index) for index in range(count)]
    yield _key("model", 8, _text("llama"))
    yield _key("tokens", 9, struct.pack("<IQ", 8, count) + b"".join(map(_text, tokens)))
    yield _key("scores", 9, struct.pack(f"<IQ{count}f", 6, count, *scores))
    yield _key("token_type", 9, struct.pack(f"<IQ{count}i", 5, count, *kinds))
    for index, name in enumerate(("unknown", "bos", "eos")):
        yield _key(f"{name}_token_id", 4, struct.pack("<I", index))


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _text(f"tokenizer.ggml.{name}") + struct.pack("<I", kind) + value


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


if __name__ == "__main__":
    main()
