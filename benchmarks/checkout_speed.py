"""Compare the speed of two checkouts: one interleaved run, CPU seconds, ratios.

    python benchmarks/checkout_speed.py --before ../before --after . [--tries 7] [--only check]

Each checkout runs with its own .venv and its own compiled files. They take turns and the minimum counts, so that other
work on the machine slows both equally: compare the ratio (after / before, below 1 is faster), not the seconds. Seconds
are user and system time of the child process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "tests" / "data"
MACHINE = ("--device", "RTX 4090", "--ram", "64G")
ROWS = 150  # of each batch
SLOW_TRIES = 3  # at most, for cases of several seconds
STEPS, BLOCKS = 25, 4

SLIDER = f"""
import asyncio, json, time
from edgekit.web.app import create_app
from edgekit.web import types

Settings = getattr(types, "WebSettings", None) or types.Settings  # its name in older checkouts
app = create_app(Settings(network=False, cache=False))
HEAD = [(b"host", b"127.0.0.1:8421"), (b"content-type", b"application/json")]
SCOPE = dict(
    type="http", asgi={{"version": "3.0"}}, http_version="1.1", method="POST", scheme="http",
    path="/api/v1/fit", raw_path=b"/api/v1/fit", root_path="", query_string=b"", headers=HEAD,
    client=("127.0.0.1", 50000), server=("127.0.0.1", 8421),
)

async def step(context):
    fields = {{"model": "sample:gemma-3-27b", "context": context, "device": ["RTX 4090"], "ram": "64G"}}
    incoming = iter([{{"type": "http.request", "body": json.dumps(fields).encode(), "more_body": False}}])
    never = asyncio.Event()
    status = []

    async def receive():
        for message in incoming:
            return message
        await never.wait()

    async def send(message):
        status.extend([message["status"]] if "status" in message else [])

    await app(dict(SCOPE), receive, send)
    assert status == [200], status

async def main():
    for warm in range(3):
        await step(4096 + 256 * warm)
    least = float("inf")
    for block in range({BLOCKS}):
        began = time.process_time()
        for number in range({STEPS}):
            await step(8192 + 128 * (block * {STEPS} + number))
        least = min(least, time.process_time() - began)
    print(least / {STEPS})

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout with its own folders for compiled files, caches and data."""

    python: str
    scratch: Path
    models: Path

    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return inherited | {
            "PYTHONPYCACHEPREFIX": str(self.scratch / "bytecode"),
            "EDGEKIT_CACHE": str(self.scratch / "cache"),
            "EDGEKIT_DATA": str(self.scratch / "data"),
        }

    def cpu_s(self, *words: str, is_cold: bool = False) -> float:
        """CPU seconds of a child process, which must succeed."""
        if is_cold:
            shutil.rmtree(self.scratch / "cache", ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.output(*words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def output(self, *words: str) -> str:
        done = subprocess.run(
            (self.python, *words),
            env=self.environment(),
            cwd=self.models,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{' '.join(words)[:200]} ended with {done.returncode}: {done.stderr[-1000:]}")
        return done.stdout

    def slider_s(self) -> float:
        """CPU seconds of one step in the server's process."""
        return float(self.output("-c", SLIDER))


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of work, measured in a checkout."""

    measure: Callable[[Checkout], float]
    tries: int
    rows: int = 0  # > 0: shown as rows per second


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of two checkouts.")
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--tries", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        models.mkdir()
        rows = _write_batch(models)
        before, after = (
            Checkout(_python(root), Path(folder, name), models)
            for name, root in (("before", arguments.before), ("after", arguments.after))
        )
        print("| | before | after | after / before |\n|---|---|---|---|", flush=True)
        for name, case in _cases(rows, arguments.tries).items():
            if arguments.only in name:
                print(_line(name, case, before, after), flush=True)


def _cases(rows: int, tries: int) -> dict[str, Case]:
    slow_tries = min(tries, SLOW_TRIES)

    def edgekit(*words: str, is_cold: bool = False) -> Callable[[Checkout], float]:
        return lambda checkout: checkout.cpu_s("-m", "edgekit", *words, is_cold=is_cold)

    return {
        "python -c pass": Case(lambda checkout: checkout.cpu_s("-c", "pass"), tries),
        "import edgekit": Case(lambda checkout: checkout.cpu_s("-c", "import edgekit"), tries),
        "import edgekit.models": Case(
            lambda checkout: checkout.cpu_s("-c", "import edgekit.models"), tries
        ),
        "edgekit --help": Case(edgekit("--help"), tries),
        "check, local header, --device": Case(
            edgekit("check", _GEMMA, "-c", "8192", *MACHINE), tries
        ),
        "check, local header, RAM only": Case(edgekit("check", _GEMMA, "--ram", "64G"), tries),
        "recommend, cold": Case(edgekit("recommend", *MACHINE, is_cold=True), slow_tries),
        "recommend, warm": Case(edgekit("recommend", *MACHINE), tries),
        "one step of the slider": Case(Checkout.slider_s, slow_tries),
        f"batch of {rows} rows": Case(edgekit("estimate", "--batch", _BATCH), slow_tries, rows),
    }


def _line(name: str, case: Case, before: Checkout, after: Checkout) -> str:
    """A row of the table. Both checkouts take turns, in alternating order."""
    best = {before: float("inf"), after: float("inf")}
    for checkout in best:
        case.measure(checkout)  # compiled files, caches
    for turn in range(case.tries):
        for checkout in (before, after) if turn % 2 == 0 else (after, before):
            best[checkout] = min(best[checkout], case.measure(checkout))
    cells = [_figure(best[checkout], case.rows) for checkout in (before, after)]
    return f"| {name} | {cells[0]} | {cells[1]} | {best[after] / best[before]:.2f} |"


def _figure(seconds: float, rows: int) -> str:
    if rows:
        return f"{rows / seconds:,.0f} rows/s"
    return f"{seconds * 1000:,.1f} ms" if seconds < 0.1 else f"{seconds:.3f} s"


def _python(root: Path) -> str:
    path = root.resolve() / ".venv" / "bin" / "python"
    if not path.exists():
        sys.exit(f"{root} has no .venv: run make setup there")
    return str(path)


_GEMMA = "gemma-3-27b.Q4_K_M.gguf"
_BATCH = "rows.jsonl"


def _write_batch(folder: Path) -> int:
    """Writes sparse files with the recorded headers, and rows about them. Returns the number of rows."""
    for model in json.loads(gzip.decompress((DATA / "models.json.gz").read_bytes())):
        path = DATA / "headers" / model["header_without_vocabulary"]
        header = gzip.decompress(path.read_bytes())
        with (folder / f"{model['model']}.{model['quant']}.gguf").open("wb") as file:
            file.write(header)
            file.truncate(-(-len(header) // 32) * 32 + model["data_section_bytes"])
    rows = [row for batch in _batches() for row in batch]
    (folder / _BATCH).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return len(rows)


def _batches() -> Iterator[Iterator[dict[str, Any]]]:
    for engine, backend, file in (
        ("llama.cpp", "cpu", "llama_cpp_cpu.jsonl.gz"),
        ("llama.cpp", "cuda", "llama_cpp_cuda.jsonl.gz"),
        ("vllm", None, "vllm.jsonl.gz"),
        ("mlx", None, "mlx.jsonl.gz"),
    ):
        recorded = map(json.loads, gzip.decompress((DATA / file).read_bytes()).splitlines())
        usable = [row for row in recorded if "options" in row]
        yield map(partial(_row, engine, backend), usable[:: len(usable) // ROWS][:ROWS])


def _row(engine: str, backend: str | None, row: dict[str, Any]) -> dict[str, Any]:
    is_config = "config" in row
    model = {} if is_config else {"model": f"{row['model']}.{row['quant']}.gguf"}
    config = {"config": row["config"]} if is_config else {}
    options = {
        key: value for key, value in row["options"].items() if key != "decode"
    }  # an option of the recording program
    return {"engine": engine, "backend": backend, "options": options, **model, **config}


if __name__ == "__main__":
    main()
