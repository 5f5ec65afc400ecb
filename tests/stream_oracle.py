"""Real llama.cpp, asked step by step which token it thinks comes next: logits to hold the built-in engine's against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.embed_oracle import Floats, answer, ask, post, wishes


def llamacpp_logits(path: Path, tokens: Sequence[int], steps: int, vocabulary: int) -> Floats:
    """Of the token after each of the last `steps` prefixes of `tokens`: a row each, centred.

    The cache is f32, flash attention off. The server tells logarithms of shares: logits less a number that is the same
    for all tokens, so the mean is taken out. What is too improbable for a float is -inf: give it a model whose logits
    are not far apart.
    """
    import numpy as np  # not in the child, which has no use for it

    request = {"tokens": list(map(int, tokens)), "steps": steps, "vocabulary": vocabulary}
    return centred(np.asarray(ask(path, request, __file__)["logits"], np.float32))


def centred(logits: Floats) -> Floats:
    import numpy as np

    return np.asarray(logits - logits.mean(axis=-1, keepdims=True), np.float32)


# --- the child


def _logits(asked: dict[str, Any]) -> dict[str, Any]:
    tokens, vocabulary = asked["tokens"], asked["vocabulary"]
    server = _server(asked)  # gone when nobody holds it
    address = server.listening_address
    letter = post(f"{address}/tokenize", {"content": "a"})["tokens"][-1]
    rows = []
    for end in range(len(tokens) - asked["steps"] + 1, len(tokens) + 1):
        reply = post(f"{address}/completion", _step(tokens[:end], vocabulary, letter))
        rows.append(_row(reply, vocabulary))
    return {"logits": rows}


def _step(prompt: list[int], vocabulary: int, letter: int) -> dict[str, Any]:
    """One token, with what was thought of all before it was chosen. It is a letter: half a character is not told of."""
    return {
        "logit_bias": [[letter, 1000.0]],
        "prompt": prompt,
        "n_predict": 1,
        "n_probs": vocabulary,
        "post_sampling_probs": False,
        "cache_prompt": True,
        "temperature": 0,
        "samplers": ["temperature"],
    }


def _row(reply: dict[str, Any], vocabulary: int) -> list[float]:
    shown = {
        top_logprob["id"]: top_logprob["logprob"]
        for top_logprob in reply["completion_probabilities"][0]["top_logprobs"]
    }
    return [shown[token] for token in range(vocabulary)]


def _server(asked: dict[str, Any]) -> Any:
    import xllamacpp

    wanted = wishes(asked, longest=len(asked["tokens"]) + 1)
    wanted.cache_type_k = wanted.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    wanted.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(wanted)


if __name__ == "__main__":
    answer(_logits)
