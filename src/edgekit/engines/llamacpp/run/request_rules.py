"""What llama.cpp's server answers, and which requests would make it allocate more than was billed.

Fields as in tools/server/server-schema.cpp and server-common.cpp. The figures were measured on a model of 1 MB.
"""

from __future__ import annotations

from edgekit.engines.request_rules import (
    COMPLETIONS,
    EMBEDDINGS,
    LARGEST_INT,
    RERANK,
    RESPONSES,
    Endpoint,
    GrammarLimit,
    ImageLimit,
    ListLimit,
    NumberLimit,
    RequestRules,
)

ENDPOINTS = (
    *COMPLETIONS,
    Endpoint(path="/chat/completions"),
    EMBEDDINGS,
    # llama.cpp's own /embeddings may return a vector for each token
    Endpoint(path="/embeddings", upstream_path=EMBEDDINGS.path, prompts=EMBEDDINGS.prompts),
    *RERANK,
    RESPONSES,
    Endpoint(path="/completion", prompts=("prompt",)),
    Endpoint(path="/infill"),
    Endpoint(path="/tokenize"),
    Endpoint(path="/detokenize"),
    Endpoint(path="/apply-template"),
)
_EMBEDDING = (EMBEDDINGS.path, "/embeddings")
_RANKING = tuple(endpoint.path for endpoint in RERANK)
_WRITING = (
    *(endpoint.path for endpoint in COMPLETIONS),
    "/chat/completions", RESPONSES.path, "/completion", "/infill",
)  # fmt: skip
MOST_PROBABILITIES = 20  # as OpenAI; the whole small vocabulary took 170 MB for 300 tokens
_WHOLE = (
    "max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "n_keep", "n_discard", "n_indent",
    "min_keep", "top_k", "dry_allowed_length", "n_cache_reuse", "reasoning_budget_tokens", "t_max_predict_ms",
    "sse_ping_interval", "top_n", "mirostat", "min_tokens",
)  # fmt: skip
_INTERNAL = "llama.cpp sets it itself; leave it out"
_REFUSED = {
    "chat_template": "a template can loop forever; the server uses the model's own",
    "grammar_triggers": _INTERNAL,
    "grammar_lazy": _INTERNAL,
    "preserved_tokens": _INTERNAL,
    "multimodal_data": "send images in messages, as image_url",
}
_COMPILED = "llama.cpp compiles it before the first token and holds up all other requests"
STOP = ListLimit(most=32, chars=256, reason="each is searched for after every token")
_LISTS = {
    # 5,000 of them took 8 seconds: each is searched for in the whole vocabulary
    "dry_sequence_breakers": ListLimit(
        most=32, chars=40, reason="each is searched for in the whole vocabulary"
    ),
    "logit_bias": ListLimit(most=1024, chars=64, reason="it is stored with the request"),
    "stop": STOP,
    # a million of them took 300 MB
    "samplers": ListLimit(most=32, reason="each is allocated anew"),
    "lora": ListLimit(most=64, reason="it names adapters that the server has loaded"),
    "response_fields": ListLimit(most=256, chars=256, reason="it names fields of a response"),
    "reasoning_budget_end_tags": ListLimit(
        most=16, chars=256, reason="each is searched for after every token"
    ),
    "tools": ListLimit(most=1024, reason=_COMPILED),
    "functions": ListLimit(most=1024, reason=_COMPILED),
}
GRAMMARS = GrammarLimit(
    texts=("grammar",),
    schemas=("json_schema", "response_format", "text", "tools", "functions"),
    chars=65_536,
    # 1,331 continuations took 0.1 s a token, 29,791 took 8 s: the time grows with the square
    repetitions=2048,
    choices=4096,
    expands_schemas=True,
    reason=_COMPILED,
)


def request_rules(
    *,
    window_tokens: int,
    slots: int,
    reads_images: bool,
    writes: bool = True,
    embeds: bool = True,
    ranks: bool = True,
) -> RequestRules:
    """The rules for a server with this context per slot. `reads_images`: it has a projector.

    `writes`, `embeds`, `ranks`: the model may write text, return embeddings, rank texts.
    """
    unserved: dict[str, str] = {}
    if not embeds:
        why = "is not an embedding model: serve one, such as nomic-embed-text-v1.5"
        unserved.update(dict.fromkeys(_EMBEDDING, why))
    if not ranks:
        why = "is not a reranking model: serve one, such as bge-reranker-v2-m3"
        unserved.update(dict.fromkeys(_RANKING, why))
    if not writes:
        kind, path = ("a reranking", "/v1/rerank") if ranks else ("an embedding", EMBEDDINGS.path)
        why = f"is {kind} model, which does not write text: use {path}, or serve a chat model"
        unserved.update(dict.fromkeys(_WRITING, why))
    history = NumberLimit(
        least=-1,
        most=window_tokens,
        reason="llama.cpp allocates 8 bytes for each, and the context holds no more",
    )
    candidates = NumberLimit(
        most=MOST_PROBABILITIES, reason="llama.cpp keeps them for every token that it writes"
    )
    choices = NumberLimit(least=1, most=slots, reason="the server has a slot for each (-np)")
    whole = NumberLimit(least=-LARGEST_INT, reason="llama.cpp reads it into 32 bits")
    return RequestRules(
        endpoints=ENDPOINTS,
        unserved=unserved,
        numbers={
            **dict.fromkeys(_WHOLE, whole),
            "repeat_last_n": history,
            "dry_penalty_last_n": history,
            "n_probs": candidates,
            "logprobs": candidates,
            "top_logprobs": candidates,
            "n": choices,
            "n_cmpl": choices,
            "id_slot": NumberLimit(least=-1, most=slots - 1, reason="the number of a slot"),
        },
        lists=_LISTS,
        refused=_REFUSED,
        grammars=GRAMMARS,
        images=ImageLimit() if reads_images else None,
    )
