"""A question -> the command line of llama-fit-params, llama.cpp's own tool for it."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

from edgekit.bill.types import Load
from edgekit.engines.flags import flag_words, given_values
from edgekit.engines.llamacpp.flags import TABLE
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
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
    command += _words(question.load, question.setup)
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


def _words(load: Load, setup: LlamaCppSetup) -> list[str]:
    """As the table of flags has them; llama.cpp would fit what is not said to the memory it finds."""
    groups = {"context", "sequences", "batch", "cache", "placement", "devices", "servers"}
    known = {flag.key for flag in TABLE if flag.group in groups} - {
        "rpc",
        "device_memory",
        "unified",
    }
    of_devices = {flag.key for flag in TABLE if flag.group in {"placement", "devices", "servers"}}
    given = given_values(TABLE, load, setup)
    told = {key: value for key, value in given.items() if key in known}
    told = {
        "context": 0,
        "flash_attn": "auto",
        "n_gpu_layers": "all",
        **told,
        "repack": setup.repack,
    }
    if setup.has_device:
        return flag_words(TABLE, told)
    on_cpu = {key: value for key, value in told.items() if key not in of_devices}
    return [*flag_words(TABLE, on_cpu), "--device", "none"]
