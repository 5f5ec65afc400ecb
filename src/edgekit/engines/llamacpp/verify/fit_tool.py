"""A question -> the command line of llama-fit-params, llama.cpp's own tool for it."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode, SplitMode
from edgekit.engines.llamacpp.verify.types import LoadQuestion
from edgekit.errors import UsageError

NAME = "llama-fit-params"
MODE = LlamaMode.LIBRARY  # every token of a micro-batch may have logits
INSTALL = "install llama.cpp, so that llama-fit-params is on the PATH"

_VERSION_TIMEOUT_S = 20.0


def is_here() -> bool:
    return shutil.which(NAME) is not None


def told_version() -> str:
    """As its --version has it: 'version: 0.5.0-dev (build 1, commit 0c1e570)'."""
    try:
        done = subprocess.run(  # noqa: S603 - a tool of the user's own PATH
            [shutil.which(NAME) or NAME, "--version"],
            capture_output=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return "of unknown version"
    found = re.search(rb"version: ([^\n]{1,80})", done.stdout + done.stderr)
    return found[1].decode(errors="replace").strip() if found else "of unknown version"


def request(question: LoadQuestion) -> dict[str, Any]:
    _require_askable(question)
    command = [shutil.which(NAME) or NAME, "-m", str(question.path)]
    command += ["--fit-print", "on", "--verbose"]
    command += _context(question.load) + _placement(question.setup)
    return {"way": NAME, "command": command}


def _require_askable(question: LoadQuestion) -> None:
    """It knows the flags that all of llama.cpp's tools share, not those of llama-server."""
    load = question.load
    refused = {
        "load a model for real": question.really,
        "report on embeddings": question.setup.embeddings,
        "share one cache among sequences": load.unified and (load.sequences or 1) > 1,
        "take a number of output rows": load.output_rows is not None,
    }
    for what, wanted in refused.items():
        if wanted:
            raise UsageError(
                f"{NAME} cannot {what}: use xllamacpp (pip install 'edgekit-models[llama]')"
            )


def _context(load: Load) -> list[str]:
    flash = {None: "auto", True: "on", False: "off"}[load.flash_attention]
    words = ["-c", str(load.context_tokens or 0), "-fa", flash]
    words += ["--swa-full"] if load.full_window else []
    for flag, value in (
        ("-b", load.batch_tokens),
        ("-ub", load.microbatch_tokens),
        ("-np", load.sequences),
        ("-ctk", load.cache_k and load.cache_k.name),
        ("-ctv", load.cache_v and load.cache_v.name),
    ):
        words += [] if value is None else [flag, str(value)]
    return words


def _placement(setup: LlamaCppSetup) -> list[str]:
    words = [] if setup.repack else ["--no-repack"]
    if not setup.has_device:
        return [*words, "--device", "none"]
    words += ["-ngl", str(setup.n_gpu_layers)]
    words += [] if setup.split_mode is SplitMode.LAYER else ["-sm", setup.split_mode.value]
    words += ["-mg", str(setup.main_gpu)] if setup.main_gpu else []
    for one in setup.overrides:
        words += ["-ot", f"{one.pattern}={one.buffer}"]
    words += ["--cpu-moe"] if setup.cpu_moe else []
    words += ["--n-cpu-moe", str(setup.n_cpu_moe)] if setup.n_cpu_moe else []
    words += [] if setup.offload_kqv else ["--no-kv-offload"]
    if setup.tensor_split:
        words += ["-ts", ",".join(f"{share:g}" for share in setup.tensor_split)]
    return words
