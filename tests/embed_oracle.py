"""Real llama.cpp, asked through xllamacpp in a process of its own: vectors and tokens to hold ours against."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def llamacpp_vectors(
    path: Path,
    token_lists: Sequence[Sequence[int]],
    pooling: str | None = None,
    *,
    threads: int = 1,
) -> Floats:
    """One pooled vector for each list of tokens, not normalised; `pooling` "mean", "cls", "last", else the file's."""
    asked = {"tokens": [list(map(int, tokens)) for tokens in token_lists], "pooling": pooling}
    return np.asarray(_ask(path, asked | {"threads": threads})["vectors"], dtype=np.float32)


def llamacpp_tokens(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Each text as llama.cpp itself cuts it for an embedding: special tokens added, and known in the text."""
    return list(_ask(path, {"texts": list(texts)})["tokens"])


def cosines(ours: Floats, theirs: Floats) -> Floats:
    """Of the rows of one with the rows of the other."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return np.asarray((ours * theirs).sum(axis=1) / lengths, dtype=np.float32)


def _ask(path: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The engine writes on standard output too, so its answer comes in a file."""
    with tempfile.TemporaryDirectory(prefix="edgekit-oracle-") as folder:
        request = {**asked, "model": str(path), "answer": str(Path(folder) / "answer.json")}
        done = subprocess.run(
            [sys.executable, __file__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=300,
            check=False,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )
        answer = Path(request["answer"])
        if not answer.exists():
            raise RuntimeError(
                f"llama.cpp did not answer ({done.returncode}): {done.stderr[-3000:]}"
            )
        told: dict[str, Any] = json.loads(answer.read_text())
        return told


# --- the child


def main() -> None:
    asked = json.loads(sys.stdin.read())
    told = _vectors(asked) if "tokens" in asked else _tokens(asked)
    Path(asked["answer"]).write_text(json.dumps(told))
    os._exit(0)


def _vectors(asked: dict[str, Any]) -> dict[str, Any]:
    server = _server(asked, longest=max(map(len, asked["tokens"])))
    found = []
    for tokens in asked["tokens"]:
        reply = server.handle_embeddings({"input": tokens, "embd_normalize": -1})
        if "data" not in reply:
            raise RuntimeError(json.dumps(reply)[:2000])
        found.append(reply["data"][0]["embedding"])
    return {"vectors": found}


def _tokens(asked: dict[str, Any]) -> dict[str, Any]:
    """By HTTP on this machine's own address: the binding has no call for it."""
    server = _server(asked, longest=64)
    return {"tokens": [_post(server.listening_address, text) for text in asked["texts"]]}


def _post(address: str, text: str) -> Any:
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    request = urllib.request.Request(
        f"{address}/tokenize", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["tokens"]


def _server(asked: dict[str, Any], *, longest: int) -> Any:
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = asked["model"]
    wanted.embedding, wanted.warmup, wanted.fit_params = True, False, False
    wanted.n_gpu_layers, wanted.n_parallel = 0, 1
    wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = max(64, -(-longest // 64) * 64)
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = asked.get("threads", 1)
    wanted.hostnames, wanted.port, wanted.n_threads_http = ["127.0.0.1"], 0, 1
    if asked.get("pooling"):
        name = f"LLAMA_POOLING_TYPE_{asked['pooling'].upper()}"
        wanted.pooling_type = getattr(xllamacpp.llama_pooling_type, name)
    return xllamacpp.Server(wanted)


if __name__ == "__main__":
    main()
