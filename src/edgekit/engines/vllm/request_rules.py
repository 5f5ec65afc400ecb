"""What `vllm serve` answers, and which requests would make it allocate more than was billed.

Fields as in vllm/entrypoints/openai/protocol.py. vLLM itself refuses prompts beyond its window.
"""

from __future__ import annotations

from edgekit.engines.request_rules import (
    COMPLETIONS,
    EMBEDDINGS,
    RERANK,
    RESPONSES,
    Endpoint,
    GrammarLimit,
    ImageLimit,
    ListLimit,
    NumberLimit,
    OneOf,
    RequestRules,
)

ENDPOINTS = (
    *COMPLETIONS,
    EMBEDDINGS,
    *RERANK,
    RESPONSES,
    Endpoint(path="/tokenize"),
    Endpoint(path="/detokenize"),
)
MOST_CHOICES = 16  # each is a request of its own in the scheduler
MOST_PROBABILITIES = 20  # vLLM's own --max-logprobs
_PROMPT_LOGITS = (
    "vLLM computes logits of the whole prompt for it, for which no memory is planned (a gigabyte for 2,048 tokens of a"
    " large vocabulary)"
)
_UNPICKLED = "vLLM would unpack it as tensors; send text"
_REFUSED = {
    "chat_template": "a template can loop forever; the server uses the model's own",
    "prompt_logprobs": _PROMPT_LOGITS,
    "echo": _PROMPT_LOGITS,
    "prompt_embeds": _UNPICKLED,
    "multi_modal_data": "send images in messages, as image_url",
    "mm_processor_kwargs": "it changes the size of images; the server's settings apply",
    "media_io_kwargs": "it changes the size of images; the server's settings apply",
    "logits_processors": "it runs code in the server",
    "kv_transfer_params": "it is for servers that share a cache",
    "use_beam_search": "each beam is a request of its own; use n",
    "background": "background responses stay in memory; use stream",
    **dict.fromkeys(
        ("structural_tag", "structured_outputs.structural_tag"),
        "send response_format with a JSON schema",
    ),
}
_FORMATS = ("text", "json_object", "json_schema")
_ONLY = {
    "response_format.type": OneOf(values=_FORMATS, reason=f"must be one of {', '.join(_FORMATS)}")
}
_COMPILED = "vLLM compiles it before the first token"
_SEARCHED = "each is searched for after every token"
_CHOICES = ListLimit(most=4096, chars=4096, reason=_COMPILED)
_LISTS = {
    "stop": ListLimit(most=32, chars=256, reason=_SEARCHED),
    "stop_token_ids": ListLimit(most=1024, reason=_SEARCHED),
    "bad_words": ListLimit(most=256, chars=256, reason=_SEARCHED),
    "allowed_token_ids": ListLimit(most=16_384, reason="it is stored with the request"),
    "logit_bias": ListLimit(most=1024, chars=64, reason="it is stored with the request"),
    "tools": ListLimit(most=1024, reason=_COMPILED),
    "guided_choice": _CHOICES,
    "structured_outputs.choice": _CHOICES,
}
_GRAMMARS = GrammarLimit(
    texts=("guided_grammar", "structured_outputs.grammar"),
    patterns=("guided_regex", "structured_outputs.regex"),
    schemas=("response_format", "text", "tools", "guided_json", "structured_outputs.json"),
    chars=65_536,
    repetitions=2048,
    choices=4096,
    reason=_COMPILED,
)


def request_rules(*, window_tokens: int, reads_images: bool) -> RequestRules:
    """The rules for a server with this maximum length of a sequence."""
    candidates = NumberLimit(
        most=MOST_PROBABILITIES, reason="vLLM keeps them for every token that it writes"
    )
    choices = NumberLimit(least=1, most=MOST_CHOICES, reason="each is a request of its own")
    length = NumberLimit(most=window_tokens, reason="the context of the server (--max-model-len)")
    return RequestRules(
        endpoints=ENDPOINTS,
        numbers={
            "logprobs": candidates,
            "top_logprobs": candidates,
            "n": choices,
            "best_of": choices,
            "max_tokens": length,
            "max_completion_tokens": length,
            "max_output_tokens": length,
            "min_tokens": length,
            "truncate_prompt_tokens": NumberLimit(
                least=-1, most=window_tokens, reason=length.reason
            ),
        },
        lists=_LISTS,
        refused=_REFUSED,
        only=_ONLY,
        grammars=_GRAMMARS,
        images=ImageLimit() if reads_images else None,
    )
