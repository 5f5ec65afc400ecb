"""The process that may die: holds a model in llama.cpp, and answers lines of tokens with lines of vectors.

It is run as a script, and the first line it reads is its settings. Nothing of EdgeKit is imported here. Standard
output is for the parent alone: what the engine prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_LOG_PATIENCE_S = 0.3  # the engine's log is written by a thread, which may be behind


def main() -> None:
    tell = _teller()
    try:
        server = _start(json.loads(sys.stdin.readline()))
    except (RuntimeError, AttributeError, TypeError, ValueError, ImportError) as error:
        time.sleep(_LOG_PATIENCE_S)
        tell(error=str(error))
        os._exit(1)
    tell(ready=True)
    for line in sys.stdin:
        tell(**_answer(server, json.loads(line)["tokens"]))
    os._exit(0)  # the parent is done or gone: no need to take it all down in order


def _teller() -> Callable[..., None]:
    """Keeps the way to the parent, and turns standard output to standard error for everybody else."""
    way = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def tell(**words: Any) -> None:
        way.write(json.dumps(words) + "\n")
        way.flush()

    return tell


def _start(settings: dict[str, Any]) -> Any:
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = settings["model"]
    for name, value in settings["parameters"].items():
        setattr(wanted, name, value)
    for threads in (wanted.cpuparams, wanted.cpuparams_batch):
        threads.n_threads = settings["threads"]
    wanted.pooling_type = getattr(xllamacpp.llama_pooling_type, settings["pooling"])
    wanted.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    return xllamacpp.Server(wanted)


def _answer(server: Any, texts: list[list[int]]) -> dict[str, Any]:
    """Vectors as base64 of their bytes, not scaled."""
    asked = {"input": texts, "encoding_format": "base64", "embd_normalize": -1}
    try:
        reply = server.handle_embeddings(asked)
    except RuntimeError as error:
        return {"error": str(error)}
    if "data" not in reply:
        return {"error": json.dumps(reply)[:1000]}
    found = sorted(reply["data"], key=lambda one: one["index"])
    return {"vectors": [one["embedding"] for one in found]}


if __name__ == "__main__":
    main()
