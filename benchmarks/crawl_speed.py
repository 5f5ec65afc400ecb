"""`index build` against a hub of synthetic repositories: speed, requests, memory, faults, kills, Ray.

    python benchmarks/crawl_speed.py [--repositories 20000] [--kills 5] [--ray] [--folder DIR]

Every build is a process of its own, so that its CPU and peak memory are its own. "Same bytes" compares SHA256SUMS.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from synthetic_hub import SyntheticHub, serve_hub, write_hub

DATE = "2026-11-18"
KILL_AFTER_S = (2.0, 20.0)


def _child(folder: str, ray: str) -> None:
    """Build once and print the figures as JSON."""
    from edgekit.app.crawl.build import build
    from edgekit.app.crawl.types import BuildOptions

    report = build(BuildOptions(folder=Path(folder), date=DATE, ray=ray or None))
    own = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "repositories": report.repositories,
        "models": report.models,
        "geometries": report.geometries,
        "problems": dict(report.problems),
        "requests": report.requests,
        "received": report.received_bytes,
        "faults": dict(report.faults),
        "seconds": report.seconds,
        "cpu": own.ru_utime + own.ru_stime,
        "peak_mb": own.ru_maxrss / 1024,
    }
    print(json.dumps(figures))


def _start(hub: SyntheticHub, folder: Path, ray: str = "") -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    }
    command = [sys.executable, __file__, "--child", str(folder), "--child-ray", ray]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def _build(hub: SyntheticHub, folder: Path, ray: str = "") -> tuple[dict[str, Any], str]:
    """The figures of an undisturbed build, and its checksums."""
    output, _ = (process := _start(hub, folder, ray)).communicate()
    if process.returncode:
        raise SystemExit(f"the build failed with {process.returncode}")
    figures: dict[str, Any] = json.loads(output)
    return figures, (folder / "SHA256SUMS").read_text()


def _print(name: str, figures: dict[str, Any]) -> None:
    repositories, cpu = figures["repositories"], figures["cpu"]
    print(
        f"| {name} | {figures['requests'] / repositories:.2f} | {figures['received'] / repositories / 1024:.0f} "
        f"| {repositories / cpu:.0f} | {repositories / figures['seconds']:.0f} | {figures['peak_mb']:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repositories", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--child")
    parser.add_argument("--child-ray", default="")
    arguments = parser.parse_args()
    if arguments.child is not None:
        _child(arguments.child, arguments.child_ray)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        _measure(Path(temporary), arguments)


def _measure(root: Path, arguments: argparse.Namespace) -> None:
    write_hub(root / "hub", arguments.repositories)
    print(
        "| build | requests per repository | KiB per repository | repositories per CPU second | per second | peak MB |"
    )
    print("|---|---|---|---|---|---|")
    # One nginx for all: the address of the hub is in the index.
    with serve_hub(root / "hub") as hub:
        figures, undisturbed = _build(hub, root / "plain")
        _print("undisturbed", figures)
        if arguments.ray:
            on_ray, sums = _build(hub, root / "ray", "local")
            _print("Ray on this machine (CPU of the driver)", on_ray)
            print(f"\nRay: {_same(sums, undisturbed)}")
        if arguments.kills:
            _kill(hub, root / "killed", arguments.kills, undisturbed)
        hub.set_faults(drawn=True)
        faulty, sums = _build(hub, root / "faults")
        _print("with faults", faulty)
        print(f"\nfaults survived: {faulty['faults']}; {_same(sums, undisturbed)}")
        time.sleep(2)  # nginx writes its log
        print(f"answers of nginx: {dict(sorted(hub.requests().items()))}")
    print(
        f"\nmodels {figures['models']:,}, geometries {figures['geometries']:,}, problems {figures['problems']}"
    )
    print({path.name: path.stat().st_size for path in sorted((root / "plain").iterdir())})


def _kill(hub: SyntheticHub, folder: Path, kills: int, undisturbed: str) -> None:
    """Start the build again and again, and kill it at a random moment."""
    chance = random.Random(7)
    killed = 0
    while killed < kills:
        process = _start(hub, folder)
        try:
            process.communicate(timeout=chance.uniform(*KILL_AFTER_S))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
            continue
        break  # it finished first
    _, sums = _build(hub, folder)
    print(f"\nkilled {killed} times with SIGKILL: {_same(sums, undisturbed)}")
    shutil.rmtree(folder)


def _same(sums: str, others: str) -> str:
    return "same bytes" if sums == others else "OTHER BYTES"


if __name__ == "__main__":
    main()
