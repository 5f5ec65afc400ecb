"""llama.cpp's logits, token by token, to compare with those of the built-in engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.embed_oracle import Floats, answer, ask, post, server_params


def llamacpp_logits(path: Path, tokens: Sequence[int], steps: int, vocabulary: int) -> Floats:
    """The centred logits after each of the last `steps` prefixes of `tokens`, one row each.

    The cache is f32, flash attention is off. The server returns log probabilities, which differ from the logits by a
    constant, so the mean is subtracted. Probabilities that underflow are -inf: use a model whose logits are not far
    apart.
    """
    import numpy as np  # not in the child, which does not need it

    request = {"tokens": list(map(int, tokens)), "steps": steps, "vocabulary": vocabulary}
    return centred(np.asarray(ask(path, request, __file__)["logits"], np.float32))


def centred(logits: Floats) -> Floats:
    import numpy as np

    return np.asarray(logits - logits.mean(axis=-1, keepdims=True), np.float32)


# --- the child


def _logits(request: dict[str, Any]) -> dict[str, Any]:
    tokens, vocabulary = request["tokens"], request["vocabulary"]
    server = _server(request)  # it stops when it is garbage-collected
    address = server.listening_address
    letter_token = post(f"{address}/tokenize", {"content": "a"})["tokens"][-1]
    rows = []
    for end in range(len(tokens) - request["steps"] + 1, len(tokens) + 1):
        reply = post(f"{address}/completion", _step(tokens[:end], vocabulary, letter_token))
        rows.append(_row(reply, vocabulary))
    return {"logits": rows}


def _step(prompt: list[int], vocabulary: int, letter_token: int) -> dict[str, Any]:
    """One token and the log probabilities of all tokens before sampling. A letter is forced: the server omits partial characters."""
    return {
        "logit_bias": [[letter_token, 1000.0]],
        "prompt": prompt,
        "n_predict": 1,
        "n_probs": vocabulary,
        "post_sampling_probs": False,
        "cache_prompt": True,
        "temperature": 0,
        "samplers": ["temperature"],
    }


def _row(reply: dict[str, Any], vocabulary: int) -> list[float]:
    log_probabilities = {
        top_logprob["id"]: top_logprob["logprob"]
        for top_logprob in reply["completion_probabilities"][0]["top_logprobs"]
    }
    return [log_probabilities[token] for token in range(vocabulary)]


def _server(request: dict[str, Any]) -> Any:
    import xllamacpp

    params = server_params(request, longest=len(request["tokens"]) + 1)
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


if __name__ == "__main__":
    answer(_logits)
