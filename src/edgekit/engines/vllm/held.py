"""One request, step by step -> blocks that it really holds (single_type_kv_cache_manager.py @ 0.32.0).

What vLLM reserves for a request (blocks.py) is the bound it admits by; a sliding window or a state holds far less
once the prompt is through. Steps are taken one after another: asynchronous scheduling may have a second in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines.vllm.types import CacheGroup, Keeps, ResolvedVllm
from edgekit.errors import UsageError

MOST_STEPS = 100_000  # Llama 4 Scout's ten million tokens are 5,120 steps of 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlocks:
    peak_blocks: int
    after_prompt_blocks: int
    last_blocks: int


def held_blocks(resolved: ResolvedVllm, prompt_tokens: int, new_tokens: int) -> HeldBlocks:
    """A prompt in steps of max_num_batched_tokens, then one token a step."""
    step = resolved.max_num_batched_tokens
    if prompt_tokens > MOST_STEPS * step:
        raise UsageError(
            f"a prompt of {prompt_tokens:,} tokens takes more than {MOST_STEPS:,} steps"
        )
    prompt = [
        _all(resolved, done, min(step, prompt_tokens - done))
        for done in range(0, prompt_tokens, step)
    ]
    # Decoding repeats with every block, so the last two rounds show all there is.
    longest = max((group.spec.block_size for group in resolved.groups), default=1)
    first = prompt_tokens + max(0, new_tokens - 2 * longest)
    decoded = [_all(resolved, done, 1) for done in range(first, prompt_tokens + new_tokens)]
    counts = prompt + decoded or [0]
    return HeldBlocks(
        peak_blocks=max(counts),
        after_prompt_blocks=prompt[-1] if prompt else 0,
        last_blocks=counts[-1],
    )


def _all(resolved: ResolvedVllm, done: int, scheduled: int) -> int:
    return sum(
        _of_group(group, done, scheduled, prefix_caching=resolved.prefix_caching)
        for group in resolved.groups
    )


def _of_group(group: CacheGroup, done: int, scheduled: int, *, prefix_caching: bool) -> int:
    """`done` tokens were computed before this step; blocks that none of the next can see are free."""
    spec = group.spec
    blocks = -(-(done + scheduled) // spec.block_size)
    match spec.keeps:
        case Keeps.WINDOW:
            return blocks - max(0, done - spec.span_tokens + 1) // spec.block_size
        case Keeps.CHUNK:
            return blocks - done // spec.span_tokens * spec.span_tokens // spec.block_size
        case Keeps.STATE:
            return _states(spec.block_size, done, scheduled) if prefix_caching else 1
        case _:
            return blocks


def _states(block_size: int, done: int, scheduled: int) -> int:
    """With prefix caching, the state at the last whole block stays beside the running one for a step."""
    if scheduled == 1:
        return 2 if done % block_size == 0 else 1
    whole = done == 0 and scheduled % block_size == 0
    return 1 if whole or done + scheduled <= block_size else 2
