"""Real llama.cpp, asked through xllamacpp in a process of its own: vectors and tokens to hold ours against."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.patience import PATIENCE_S

# The child has no numbers to work with: it is there for the engine, a hundred times in a run of the tests.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
else:
    Floats = Any
ROOT = Path(__file__).parent.parent


def llamacpp_vectors(
    path: Path,
    token_lists: Sequence[Sequence[int]],
    pooling: str | None = None,
    *,
    threads: int = 1,
) -> Floats:
    """One pooled vector for each list of tokens, not normalised; `pooling` "mean", "cls", "last", else the file's."""
    import numpy as np

    request = {"tokens": [list(map(int, tokens)) for tokens in token_lists], "pooling": pooling}
    return np.asarray(ask(path, request | {"threads": threads})["vectors"], dtype=np.float32)


def llamacpp_tokens(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Each text as llama.cpp itself cuts it for an embedding: special tokens added, and known in the text."""
    return list(ask(path, {"texts": list(texts)})["tokens"])


def cosines(ours: Floats, theirs: Floats) -> Floats:
    """Of the rows of one with the rows of the other."""
    import numpy as np

    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return np.asarray((ours * theirs).sum(axis=1) / lengths, dtype=np.float32)


def ask(path: Path, asked: Mapping[str, Any], script: str = __file__) -> dict[str, Any]:
    """What a script that calls `answer` says. The engine writes on standard output too, so it comes in a file."""
    with tempfile.TemporaryDirectory(prefix="edgekit-oracle-") as folder:
        request = {**asked, "model": str(path), "answer": str(Path(folder) / "answer.json")}
        done = subprocess.run(
            [sys.executable, script],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "GGML_NO_BACKTRACE": "1", "PYTHONPATH": str(ROOT)},
        )
        answer = Path(request["answer"])
        if not answer.exists():
            raise RuntimeError(
                f"llama.cpp did not answer ({done.returncode}): {done.stderr[-3000:]}"
            )
        output: dict[str, Any] = json.loads(answer.read_text())
        return output


# --- the child


def answer(tell: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    request = json.loads(sys.stdin.read())
    Path(request["answer"]).write_text(json.dumps(tell(request)))
    os._exit(0)


def _told(asked: dict[str, Any]) -> dict[str, Any]:
    return _vectors(asked) if "tokens" in asked else _tokens(asked)


def _vectors(asked: dict[str, Any]) -> dict[str, Any]:
    server = _server(asked, longest=max(map(len, asked["tokens"])))
    results = []
    for tokens in asked["tokens"]:
        reply = server.handle_embeddings({"input": tokens, "embd_normalize": -1})
        if "data" not in reply:
            raise RuntimeError(json.dumps(reply)[:2000])
        results.append(reply["data"][0]["embedding"])
    return {"vectors": results}


def _tokens(asked: dict[str, Any]) -> dict[str, Any]:
    """By HTTP on this machine's own address: the binding has no call for it."""
    server = _server(asked, longest=64)
    special = {"add_special": True, "parse_special": True}
    return {
        "tokens": [
            post(f"{server.listening_address}/tokenize", {"content": text, **special})["tokens"]
            for text in asked["texts"]
        ]
    }


def post(address: str, asked: dict[str, Any]) -> Any:
    import urllib.request

    request = urllib.request.Request(
        address, data=json.dumps(asked).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return json.load(reply)


def wishes(asked: dict[str, Any], *, longest: int) -> Any:
    """A server for one short text at a time, on this machine's own address."""
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = asked["model"]
    wanted.warmup, wanted.fit_params = False, False
    wanted.n_gpu_layers, wanted.n_parallel = 0, 1
    wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = max(64, -(-longest // 64) * 64)
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = asked.get("threads", 1)
    wanted.hostnames, wanted.port, wanted.n_threads_http = ["127.0.0.1"], 0, 1
    return wanted


def _server(asked: dict[str, Any], *, longest: int) -> Any:
    import xllamacpp

    wanted = wishes(asked, longest=longest)
    wanted.embedding = True
    if asked.get("pooling"):
        name = f"LLAMA_POOLING_TYPE_{asked['pooling'].upper()}"
        wanted.pooling_type = getattr(xllamacpp.llama_pooling_type, name)
    return xllamacpp.Server(wanted)


if __name__ == "__main__":
    answer(_told)
