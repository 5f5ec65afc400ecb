"""An engine, a prompt and a sampler -> tokens, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgekit.errors import ContextTooLargeError, UsageError

if TYPE_CHECKING:
    from edgekit.engines.native.run.engine import StreamEngine
    from edgekit.engines.native.sampler import Sampler
    from edgekit.engines.native.types import Checkpoint


def generate(
    engine: StreamEngine,
    tokens: Sequence[int],
    sampler: Sampler,
    *,
    max_tokens: int | None,
    stop: frozenset[int],
    checkpoint: Checkpoint | None = None,
) -> Iterator[int]:
    """New tokens behind the prompt, up to one of `stop`, which is not given, or `max_tokens`.

    Without `max_tokens` a window that does not roll ends it when it is full. ContextTooLargeError, before anything is
    computed, when the prompt does not fit, or what was asked for behind it. Who stops listening ends the work; the
    last token was not read by the engine then, nor is it after `max_tokens`.
    """
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"the number of new tokens must be at least 1 (got {max_tokens})")
    _check_room(engine, len(tokens), max_tokens)
    return _tokens(engine, tokens, sampler, max_tokens=max_tokens, stop=stop, checkpoint=checkpoint)


def _tokens(
    engine: StreamEngine,
    tokens: Sequence[int],
    sampler: Sampler,
    *,
    max_tokens: int | None,
    stop: frozenset[int],
    checkpoint: Checkpoint | None,
) -> Iterator[int]:
    logits = engine.feed(tokens, checkpoint)
    for token in tokens:
        sampler.accept(token)
    made = 0
    while True:
        token = sampler.sample(logits)
        sampler.accept(token)
        if token in stop:
            return
        yield token
        made += 1
        if made == max_tokens or engine.room_tokens == 0:
            return
        logits = engine.feed((token,), checkpoint)


def _check_room(engine: StreamEngine, prompt: int, max_tokens: int | None) -> None:
    """The last new token is not read, so it needs no place."""
    room, wanted = engine.room_tokens, prompt + (max_tokens or 1) - 1
    if room is None or wanted <= room:
        return
    window, before = engine.plan.context_tokens, engine.position
    taken = f" ({before:,} are in use)" if before else ""
    new = f" plus {max_tokens:,} new ones" if max_tokens is not None else ""
    raise ContextTooLargeError(
        f"a prompt of {prompt:,} tokens{new} does not fit in the context of "
        f"{window:,}{taken}: use a context of {before + wanted:,} or more, or a rolling "
        "window"
    )
