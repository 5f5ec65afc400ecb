"""llama.cpp through xllamacpp, in a child process: vectors and tokens to compare with ours."""

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

# The child, which is started a hundred times in a test run, does not need numpy.
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
    """The tokens of each text as llama.cpp embeds it: special tokens are added, and parsed in the text."""
    return list(ask(path, {"texts": list(texts)})["tokens"])


def cosines(actual: Floats, expected: Floats) -> Floats:
    """The cosine similarity of each pair of rows."""
    import numpy as np

    lengths = np.linalg.norm(actual, axis=1) * np.linalg.norm(expected, axis=1)
    return np.asarray((actual * expected).sum(axis=1) / lengths, dtype=np.float32)


def ask(path: Path, parameters: Mapping[str, Any], script: str = __file__) -> dict[str, Any]:
    """The output of a script that calls `answer`; in a file, because the engine writes to standard output."""
    with tempfile.TemporaryDirectory(prefix="edgekit-oracle-") as folder:
        request = {**parameters, "model": str(path), "answer": str(Path(folder) / "answer.json")}
        process = subprocess.run(
            [sys.executable, script],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "GGML_NO_BACKTRACE": "1", "PYTHONPATH": str(ROOT)},
        )
        answer_path = Path(request["answer"])
        if not answer_path.exists():
            raise RuntimeError(
                f"llama.cpp did not answer ({process.returncode}): {process.stderr[-3000:]}"
            )
        output: dict[str, Any] = json.loads(answer_path.read_text())
        return output


# --- the child


def answer(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    request = json.loads(sys.stdin.read())
    Path(request["answer"]).write_text(json.dumps(handle(request)))
    os._exit(0)


def _handle(request: dict[str, Any]) -> dict[str, Any]:
    return _vectors(request) if "tokens" in request else _tokens(request)


def _vectors(request: dict[str, Any]) -> dict[str, Any]:
    server = _server(request, longest=max(map(len, request["tokens"])))
    results = []
    for tokens in request["tokens"]:
        reply = server.handle_embeddings({"input": tokens, "embd_normalize": -1})
        if "data" not in reply:
            raise RuntimeError(json.dumps(reply)[:2000])
        results.append(reply["data"][0]["embedding"])
    return {"vectors": results}


def _tokens(request: dict[str, Any]) -> dict[str, Any]:
    """By HTTP on loopback, because the binding has no function for it."""
    server = _server(request, longest=64)
    special = {"add_special": True, "parse_special": True}
    return {
        "tokens": [
            post(f"{server.listening_address}/tokenize", {"content": text, **special})["tokens"]
            for text in request["texts"]
        ]
    }


def post(address: str, body: dict[str, Any]) -> Any:
    import urllib.request

    request = urllib.request.Request(
        address, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return json.load(reply)


def server_params(request: dict[str, Any], *, longest: int) -> Any:
    """Parameters of a server on loopback for one short text at a time."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = request["model"]
    params.warmup, params.fit_params = False, False
    params.n_gpu_layers, params.n_parallel = 0, 1
    params.n_ctx = params.n_batch = params.n_ubatch = max(64, -(-longest // 64) * 64)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = request.get("threads", 1)
    params.hostnames, params.port, params.n_threads_http = ["127.0.0.1"], 0, 1
    return params


def _server(request: dict[str, Any], *, longest: int) -> Any:
    import xllamacpp

    params = server_params(request, longest=longest)
    params.embedding = True
    if request.get("pooling"):
        name = f"LLAMA_POOLING_TYPE_{request['pooling'].upper()}"
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, name)
    return xllamacpp.Server(params)


if __name__ == "__main__":
    answer(_handle)
