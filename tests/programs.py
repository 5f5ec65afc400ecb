"""Programs for tests: small scripts that are found on a PATH and answer, lie, hang or flood; and a list of four."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from edgekit.app.programs import InstalledProgram
from edgekit.engines import engine_named
from edgekit.engines.program import Installation

HANG = "import time\nprint('version: 11549 (abcdef0)', flush=True)\ntime.sleep(3600)"
FLOOD = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
CRASH = "import os, signal\nprint('about to die', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)"
FAIL = "import sys\nsys.exit('error while loading shared libraries: libcudart.so.11.0')"


def write_program(path: Path, code: str, *, interpreter: str = sys.executable) -> Path:
    """An executable Python script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter} -I\n{code}\n")
    path.chmod(0o755)
    return path


def answering(answers: dict[str, str]) -> str:
    """The code of a program that prints the text for its first argument."""
    return f"import sys\nprint({answers!r}.get(sys.argv[1], 'unknown argument'))"


def installed(engine: str, **facts: Any) -> InstalledProgram:
    installation = Installation(**({"origin": "PATH", "path": ""} | facts))
    return InstalledProgram(engine=engine_named(engine), installation=installation)


PROGRAMS = (
    installed(
        "llama.cpp",
        program="llama-server",
        path="/usr/bin/llama-server",
        version="0.6.0-dev",
        build="b11549",
        backends=("CUDA", "Vulkan", "CPU"),
        devices=("CUDA0: RTX 4090",),
        rules_version="0.6.0-dev (b11549)",
    ),
    installed("llama.cpp", program="llama-fit-params", version="b9294"),
    installed(
        "llama.cpp",
        program="ollama",
        origin="running server",
        path="http://127.0.0.1:11434",
        version="0.12.3",
        problem="already running; EdgeKit starts its own server",
    ),
    installed("vllm", program="vllm", problem="it does not answer within 2.5 s"),
)
