"""What `mlx_lm.server` answers, and which requests would make it allocate more than was billed.

Fields as in mlx_lm/server.py. Its cache has no fixed size: it grows with the prompt and the answer.
"""

from __future__ import annotations

from edgekit.engines.request_rules import (
    COMPLETIONS,
    ListLimit,
    NumberLimit,
    OneOf,
    RequestRules,
)

MOST_PROBABILITIES = 10  # mlx_lm.server's own limit
_LOADS = "mlx_lm.server would load other weights for it; start a server with them"
_REFUSED = {
    "adapters": _LOADS,
    "draft_model": _LOADS,
    "chat_template": "a template can loop forever; the server uses the model's own",
}
# mlx_lm.server ignores others without an error.
_ONLY = {
    "n": OneOf(values=(1,), reason="mlx_lm.server returns one answer"),
    "response_format": OneOf(
        values=({"type": "text"},), reason="mlx_lm.server does not support it"
    ),
}
_LISTS = {
    "stop": ListLimit(most=32, chars=256, reason="each is searched for after every token"),
    "logit_bias": ListLimit(most=1024, chars=64, reason="it is stored with the request"),
    "tools": ListLimit(most=1024, reason="they are part of the prompt"),
}


def request_rules(*, window_tokens: int) -> RequestRules:
    """The rules for a server whose cache was planned for this many tokens."""
    length = NumberLimit(
        most=window_tokens,
        reason="the cache grows with every token, and was planned for this number",
    )
    candidates = NumberLimit(most=MOST_PROBABILITIES, reason="mlx_lm.server returns no more")
    return RequestRules(
        endpoints=COMPLETIONS,
        numbers={
            "max_tokens": length,
            "max_completion_tokens": length,
            "repetition_context_size": length,
            "logprobs": candidates,
            "top_logprobs": candidates,
        },
        lists=_LISTS,
        refused=_REFUSED,
        only=_ONLY,
    )
