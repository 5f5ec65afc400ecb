"""`edgekit serve` and `run` on a real GPU: the bill against the driver, decode speed with and without the gateway, a
card that is almost full, an engine that is killed, and three models that take turns on the card.

    python benchmarks/gpu_serving.py HEADER.gguf.gz... [--card 24] [--folder DIR] [--swap A.gz B.gz C.gz]

llama-server has to be on the PATH, and torch to be installed: it holds the rest of the card, so that only --card GiB of
it are free. Each model is written with its full size, but as a hole (all weights are zero), with words of its own: the
headers of tests/data/headers have none. A line of JSON for each measurement is printed.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from edgekit.engines.llamacpp.run.generated import (
    _CONTROL,
    _INT32,
    _NORMAL,
    HollowFile,
    _gguf_header,
    _pack_key,
    _words,
)
from edgekit.formats.gguf import read_gguf
from edgekit.formats.types import Value
from edgekit.units import GIB, MIB

NEW_TOKENS, TURNS = 64, 5
FULL = 0.98  # of the usable memory
PROMPT = "the quick brown fox jumps over the lazy dog " * 8


def write_model(head: Path, folder: Path) -> Path:
    """The model of a header as a sparse file that llama.cpp loads."""
    raw = gzip.decompress(head.read_bytes())
    header = read_gguf(HollowFile(name=head.name, header=raw, size_bytes=2**60))
    assert header.tensors is not None
    embedding = next(tensor for tensor in header.tensors if tensor.name == "token_embd.weight")
    words = list(islice(_words(), embedding.shape[0] - 1))
    keys: dict[str, Value] = {
        name: value for name, value in header.keys.items() if not name.startswith("tokenizer.")
    }
    keys |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ("<|end|>", *(left + right for left, right in words)),
        "tokenizer.ggml.merges": tuple(" ".join(pair) for pair in words if pair[0]),
        "tokenizer.ggml.token_type": (_CONTROL, *[_NORMAL] * len(words)),
        "tokenizer.ggml.eos_token_id": 0,
    }
    packed = [
        _pack_key(name, value, _INT32 if name.endswith("token_type") else None)
        for name, value in keys.items()
    ]
    start, size_bytes = _gguf_header(packed, header.tensors)
    path = folder / head.name.replace(".novocab.gguf.head.gz", ".gguf")
    with path.open("wb") as out:
        out.write(start)
        out.truncate(size_bytes)
    return path


@contextmanager
def ballast(free_gib: float) -> Iterator[None]:
    """Holds memory of the card in another process until only this much is free."""
    code = (
        "import sys, torch; free, _ = torch.cuda.mem_get_info(); "
        f"held = torch.empty(free - int({free_gib} * 2**30), dtype=torch.uint8, device='cuda'); "
        "print(torch.cuda.mem_get_info()[0], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        say(ballast_free_gib=int(process.stdout.readline()) / GIB)
        yield
        process.stdin.close()


def used_bytes() -> int:
    """What is in use of the first card, by the driver."""
    import pynvml

    pynvml.nvmlInit()
    used: int = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used
    return used


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`edgekit serve`, once it is ready."""
    command = [sys.executable, "-m", "edgekit", "serve", *words, "--json", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process, event(process)
        process.send_signal(signal.SIGTERM)


def event(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"edgekit serve ended with {process.wait()}")
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def engine_of(pid: int) -> tuple[str, str]:
    """Address and key of the llama-server behind the gateway."""
    process = psutil.Process(pid)
    port = next(item.laddr.port for item in process.net_connections() if item.status == "LISTEN")
    return f"127.0.0.1:{port}", process.environ().get("LLAMA_API_KEY", "")


def stream(address: str, key: str = "", tokens: int = NEW_TOKENS) -> list[float]:
    """The times at which the pieces of an answer came."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    body = {"prompt": PROMPT, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("POST", "/v1/completions", json.dumps(body | {"model": "any"}), headers)
    reply, times = connection.getresponse(), []
    assert reply.status == 200, reply.read()
    while line := reply.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    connection.close()
    return times


def pace(times: list[float]) -> float:
    """Tokens per second after the first."""
    return (len(times) - 1) / (times[-1] - times[0])


def measure_served(path: Path, words: list[str], *, label: str) -> None:
    """One start: predicted against the driver, and decode speed with and without the gateway."""
    before = used_bytes()
    begun_s = time.monotonic()
    with serving(str(path), "--with", "llama-server", *words) as (_, ready):
        started_s = time.monotonic() - begun_s
        loaded = used_bytes() - before
        stream(ready["address"], tokens=8)  # the first request warms up
        address, key = engine_of(ready["pid"])
        through, direct = [], []
        for _ in range(TURNS):
            direct.append(pace(stream(address, key)))
            through.append(pace(stream(ready["address"])))
        peak = used_bytes() - before
        usable = ready["available_bytes"]
        say(
            label=label,
            model=path.name,
            words=words,
            context=ready["context_tokens"],
            started_s=round(started_s, 1),
            predicted_mib=round(ready["required_bytes"] / MIB),
            usable_mib=round(usable / MIB),
            share_of_usable=round(ready["required_bytes"] / usable, 4),
            driver_after_load_mib=round(loaded / MIB),
            driver_after_work_mib=round(peak / MIB),
            within=ready["within"],
            reported=[
                [row["part"], row["predicted_bytes"], row["difference_bytes"]]
                for row in ready["reported"]
            ],
            direct_tokens_per_s=round(statistics.median(direct), 1),
            gateway_tokens_per_s=round(statistics.median(through), 1),
            gateway_share=round(statistics.median(through) / statistics.median(direct), 4),
        )


def full_context(path: Path) -> int:
    """The window at which FULL of the usable memory is used."""

    def share(tokens: int) -> float:
        words = ["check", str(path), "-c", str(tokens), "-ngl", "all", "--json", "-np", "1"]
        words = [sys.executable, "-m", "edgekit", *words]
        answer = subprocess.run(words, capture_output=True, text=True, check=False)
        plan = json.loads(answer.stdout)
        required: float = plan["required_bytes"] / plan["available_bytes"]
        return required

    low, high = 256, 256
    while share(high) < FULL and high < 2**22:
        low, high = high, 2 * high
    while high - low > 256:
        middle = (low + high) // 512 * 256
        low, high = (middle, high) if share(middle) < FULL else (low, middle)
    return high


def measure_killed(path: Path) -> None:
    """The engine is killed: the time until it serves again."""
    with serving(str(path), "--with", "llama-server", "--restart", "on-failure") as (
        process,
        ready,
    ):
        stream(ready["address"], tokens=4)
        os.kill(ready["pid"], signal.SIGKILL)
        begun_s = time.monotonic()
        events = [event(process) for _ in range(3)]
        again = events[-1]
        answered = len(stream(again["address"], tokens=8))
        say(
            label="killed",
            model=path.name,
            events=[item["event"] for item in events],
            why=events[0]["why"],
            seconds=round(time.monotonic() - begun_s, 1),
            same_address=again["address"] == ready["address"],
            answered=answered,
        )


def measure_run(path: Path) -> None:
    command = [sys.executable, "-m", "edgekit", "run", str(path), "--with", "llama-server"]
    command += ["-p", "the quick brown fox", "-n", "32", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        say(label="run", model=path.name, failed=answer.stderr[-600:])
        return
    result = json.loads(answer.stdout)
    say(
        label="run",
        model=path.name,
        within=all(row["within"] for row in result["reported"]),
        **{key: result[key] for key in result if "tokens" in key},
    )


class CardSampler(threading.Thread):
    """Samples the memory in use of the first card 20 times a second, until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended, self.samples = threading.Event(), list[int]()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            self.samples.append(used_bytes())


def measure_swaps(paths: list[Path], words: list[str], requests: int) -> None:
    """Models that do not fit on the card together: requests in turn, and the most memory that the driver counts."""
    before = used_bytes()
    with serving(*map(str, paths), "--with", "llama-server", *words) as (_, ready):
        address, names = ready["address"], [model["name"] for model in ready["models"]]
        seconds, failed, sampler = [], 0, CardSampler()
        sampler.start()
        for number in range(requests):
            begun_s = time.perf_counter()
            failed += ask(address, names[number % len(names)]) != 200
            seconds.append(time.perf_counter() - begun_s)
        sampler.ended.set()
        sampler.join()
        say(
            label="swaps",
            models=[
                [model["name"], model["bytes"], model["stays_loaded"]] for model in ready["models"]
            ],
            memories=ready["memories"],
            requests=requests,
            failed=failed,
            driver_peak_mib=round((max(sampler.samples) - before) / MIB),
            samples=len(sampler.samples),
            median_s=round(statistics.median(seconds), 2),
            most_s=round(max(seconds), 2),
        )


def ask(address: str, name: str) -> int:
    """The status of the answer to a short request."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    body = {"model": name, "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True}
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    reply = connection.getresponse()
    reply.read()
    connection.close()
    return reply.status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("headers", nargs="*", type=Path)
    parser.add_argument("--card", type=float, default=24.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--swap", nargs="*", type=Path, default=[], help="headers of three models")
    parser.add_argument("--requests", type=int, default=30, help="to the models of --swap")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="edgekit-gpu-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ballast(arguments.card):
            for number, head in enumerate(arguments.headers):
                path = write_model(head, folder)
                for label, words in (
                    ("default", []),
                    ("full", ["-np", "1", "-c", str(full_context(path)), "-ngl", "all"]),
                ):
                    try:
                        measure_served(path, words, label=label)
                    except (RuntimeError, AssertionError, OSError) as error:
                        say(label=label, model=path.name, words=words, failed=repr(error)[:400])
                if number == 0:
                    measure_run(path)
                    measure_killed(path)
                path.unlink()
            if arguments.swap:
                paths = [write_model(head, folder) for head in arguments.swap]
                try:
                    measure_swaps(
                        paths, ["-c", "8k", "-np", "1", "-ngl", "all"], arguments.requests
                    )
                except (RuntimeError, AssertionError, OSError) as error:
                    say(label="swaps", failed=repr(error)[:400])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
