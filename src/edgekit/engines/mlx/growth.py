"""How long mlx-lm's caches are after a prompt in chunks and some new tokens (mlx_lm/models/cache.py, 0.32.2).

A prompt of P tokens is evaluated as chunks of `step` tokens, the last token alone; every new token follows alone.
A cache grows by whole blocks of 256 when a chunk does not fit, cutting off what was unused, so its length depends on
the chunks and not on the number of tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 256  # KVCache.step


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxSession:
    """What was put into the caches."""

    prompt_tokens: int
    new_tokens: int
    step: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens

    @property
    def full_chunks(self) -> int:
        return max(self.prompt_tokens - 1, 0) // self.step

    @property
    def last_chunk(self) -> int:
        return max(self.prompt_tokens - 1, 0) % self.step

    @property
    def singles(self) -> int:
        """Tokens that come alone: the last of the prompt and the new ones."""
        return min(self.prompt_tokens, 1) + self.new_tokens

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """(tokens, tokens up to its end) of the last full chunk and of the rest: no other is larger."""
        ends = self.full_chunks * self.step
        both = ((self.step, ends), (self.last_chunk, ends + self.last_chunk))
        return tuple((size, end) for size, end in both if size and end) or ((1, 1),)

    @property
    def widest_chunk(self) -> int:
        return self.step if self.full_chunks else max(self.last_chunk, 1)


def full_length(session: MlxSession) -> int:
    """KVCache and QuantizedKVCache: rows held."""
    used, rows = _chunks(0, 0, session.step, session.full_chunks)
    used, rows = _chunks(used, rows, session.last_chunk, 1)
    return _singles(used, rows, session.singles)


def chunked_length(session: MlxSession, chunk: int) -> int:
    """ChunkedKVCache: a KVCache that is cut to the last `chunk` tokens before each call."""
    used, rows = _chunks(0, 0, session.step, session.full_chunks, keep=chunk)
    used, rows = _chunks(used, rows, session.last_chunk, 1, keep=chunk)
    if session.singles > max(chunk - used + 1, 0):
        return chunk + BLOCK  # cut to the chunk, then a block for one more
    return _singles(used, rows, session.singles)


def rotating_length(session: MlxSession, window: int, keep: int = 0) -> int:
    """RotatingKVCache: chunks are appended to the last window - 1 rows, single tokens overwrite."""
    rows, singles = _after_prompt(session, max(window - 1, keep))
    return min(max(window, keep), rows + _blocks(singles)) if singles else rows


def widest_rotating(session: MlxSession, window: int) -> int:
    """The most rows that a rotating cache holds while a chunk goes through."""
    full = _appended(0, session.step, session.full_chunks, window - 1)
    return max(full, _after_prompt(session, window - 1)[0], rotating_length(session, window))


def _after_prompt(session: MlxSession, kept: int) -> tuple[int, int]:
    """Rows after the chunks, and tokens that follow alone: a chunk of one token is one of these."""
    if session.step == 1:
        return 0, session.tokens
    rows = _appended(0, session.step, session.full_chunks, kept)
    if session.last_chunk == 1:
        return rows, session.singles + 1
    return _appended(rows, session.last_chunk, 1, kept), session.singles


def _appended(rows: int, size: int, count: int, kept: int) -> int:
    """Rows after `count` chunks, each behind the last `kept` rows of those before."""
    if not count or not size:
        return rows
    return min(rows + size * (count - 1), kept) + size


def _chunks(
    used: int, rows: int, size: int, count: int, *, keep: int | None = None
) -> tuple[int, int]:
    """Used and held rows after `count` chunks. After a few hundred at most they repeat themselves."""
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    done = 0
    while size and done < count:
        if keep is not None and used > keep:
            used = rows = keep
        rows = _grown(used, rows, size)
        used, done = used + size, done + 1
        state = (used % BLOCK if keep is None else used, rows - used)
        if state in seen:
            done_then, used_then = seen.pop(state)
            turns = (count - done) // (done - done_then)
            longer = turns * (used - used_then)
            used, rows, done = used + longer, rows + longer, done + turns * (done - done_then)
        else:
            seen[state] = (done, used)
    return used, rows


def _grown(used: int, rows: int, size: int) -> int:
    """Rows with room for `size` more. What is unused is cut off, unless a block ends just there."""
    if used + size <= rows:
        return rows
    return (used if used % BLOCK else rows) + _blocks(size)


def _singles(used: int, rows: int, count: int) -> int:
    return rows + _blocks(max(used + count - rows, 0))


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK) * BLOCK
