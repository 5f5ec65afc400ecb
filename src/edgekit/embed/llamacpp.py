"""Embeddings from llama.cpp itself, if the whole model fits in memory: `engine="llama.cpp"`.

The engine runs in a separate process (engines/llamacpp/child.py). A file that makes llama.cpp abort ends that process
and not the caller's, its output does not mix with ours, and a cancelled pass ends at once, which llama.cpp's own
interface does not allow within a batch.
"""

from __future__ import annotations

import base64
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.bill.types import Load
from edgekit.engines.llamacpp import ENGINE
from edgekit.engines.llamacpp.run.binding import (
    INSTALL_XLLAMACPP,
    PASSIVE,
    enum_parameters,
    has_xllamacpp,
    parameters,
    private_server,
    start_child,
)
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.native.crew import Checkpoint
from edgekit.engines.native.families import Pooling
from edgekit.engines.native.file import FileHeader
from edgekit.engines.native.kernels.types import Floats
from edgekit.engines.process import ChildProcess
from edgekit.errors import EngineError, HeaderError, UsageError
from edgekit.machine.monitor import Monitor
from edgekit.units import MB

_SEQUENCES = 32  # texts that one batch may hold
_SPARE_TOKENS = 256  # llama.cpp rounds the KV cache to this; a text must be shorter than the cache
_POLL_S = 0.02  # between two checkpoints: how long a cancelled pass takes to end
_LAST_OUTPUT_CHARS = 4_000
_START_TIMEOUT_S = 900.0  # 5 GB from a disk with 10 MB/s take 500 s
_PROCESS_BYTES = 192 * MB  # interpreter, library and threads: 60 to 170 MB measured
_TOKEN_BYTES = 640  # per token of the vocabulary: 152,064 tokens took 68 MB, 450 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """How llama.cpp is started."""

    pooling: Pooling
    threads: int
    pass_tokens: int  # of all texts in a pass; no text may be longer


def needed_bytes(header: FileHeader, settings: ChildSettings) -> int:
    """An upper bound on the memory of the engine's process. MODELLED: all of the mapped file counts."""

    def number(key: str) -> int:
        return _number(header, key)

    vocabulary = header.arrays.get("tokenizer.ggml.tokens")
    tokens = vocabulary.count if vocabulary is not None else number("vocab_size")
    width, inner = number("embedding_length"), number("feed_forward_length")
    # The KV cache in f16. Encoders do not have one, but theirs would be too small to matter.
    heads = number("attention.head_count") or 1
    length = number("attention.key_length") or width // heads
    row = length * (number("attention.head_count_kv") or heads)
    cache_bytes = _context_tokens(settings) * number("block_count") * 2 * row * 2
    # Floats for each token of a pass: feed-forward, hidden states, attention masks, a decoder's logits.
    logits = 0 if "tokenizer.ggml.token_type_count" in header.keys else tokens
    masks = 2 * _context_tokens(settings)  # flash attention stores no scores
    compute_bytes = settings.pass_tokens * 4 * (3 * inner + 16 * width + masks + logits)
    process_bytes = _PROCESS_BYTES + tokens * _TOKEN_BYTES
    return header.file_bytes + cache_bytes + compute_bytes + process_bytes


def width_of(header: FileHeader) -> int:
    """The dimensions of a vector. Raises HeaderError if the file does not state them."""
    width = _number(header, "embedding_length_out") or _number(header, "embedding_length")
    if not width:
        raise HeaderError("embedding_length is missing or not a number", file=header.name)
    return width


class LlamaCppEncoder:
    """An Encoder that runs the model in a child process. One caller at a time."""

    def __init__(
        self, path: Path, header: FileHeader, settings: ChildSettings, *, monitor: Monitor
    ) -> None:
        """Loads the model.

        Raises MemoryPressureError if it exceeds the budget, and EngineError with the engine's last output.
        """
        if not has_xllamacpp():
            raise UsageError(f"engine {ENGINE.name} is not installed: {INSTALL_XLLAMACPP}")
        self.width = width_of(header)
        self._path, self._settings = path, settings
        self._process: ChildProcess | None = None
        self._log: deque[str] = deque(maxlen=64)  # the last lines of the process
        self._memory = monitor.try_allocate(
            needed_bytes(header, settings), f"{header.name} in {ENGINE.name}"
        )
        try:
            self._start(lambda _: monitor.check())
        except BaseException:
            self._memory.release()
            raise

    def encode(self, texts: Sequence[Sequence[int]], into: Floats, checkpoint: Checkpoint) -> None:
        """Writes a pooled, unscaled vector for each text to a row of `into`. Raises EngineError if the engine dies.

        If `checkpoint` raises, the engine's process is ended; the next call starts another.
        """
        checkpoint(0.0)
        total, done, row = max(1, sum(map(len, texts))), 0, 0
        try:
            process = self._process or self._start(checkpoint)
            for batch in _batches(texts, self._settings.pass_tokens):
                process.send({"tokens": [list(map(int, tokens)) for tokens in batch]})
                answer = self._answer(process, checkpoint, done / total)
                _copy_vectors(answer["vectors"], into[row : row + len(batch)])
                row, done = row + len(batch), done + sum(map(len, batch))
                checkpoint(done / total)
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Idempotent."""
        self._end()
        self._memory.release()

    def _start(self, checkpoint: Checkpoint) -> ChildProcess:
        """Starts the engine's process and waits until it has loaded the model."""
        self._log.clear()
        request = _request(self._path, self._settings)
        self._process = process = start_child(
            "embed", request, environment=PASSIVE, on_line=self._log.append
        )
        try:
            self._answer(process, checkpoint, 0.0, timeout_s=_START_TIMEOUT_S)
        except BaseException:
            self._end()
            raise
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _answer(
        self,
        process: ChildProcess,
        checkpoint: Checkpoint,
        share: float,
        *,
        timeout_s: float = math.inf,
    ) -> dict[str, Any]:
        """The next message of the process; `checkpoint` is called while it is silent."""
        waited_s = 0.0
        try:
            while (message := process.message(_POLL_S)) is None:
                checkpoint(share)
                waited_s += _POLL_S
                if waited_s > timeout_s:
                    raise self._failure(f"did not start within {timeout_s:,.0f} s")
        except EOFError:
            raise self._failure(f"exited (code {process.wait()})") from None
        if "error" in message:
            raise self._failure(f"failed: {message['error']}")
        return message

    def _failure(self, event: str) -> EngineError:
        """Ends the process. Returns an error with what happened and the last output of the engine."""
        self._end()  # everything it wrote has been read
        output = "".join(self._log)[-_LAST_OUTPUT_CHARS:].strip()
        return EngineError(
            f"{ENGINE.name} {event}" + (f"; its last output:\n{output}" if output else "")
        )


def _request(path: Path, settings: ChildSettings) -> dict[str, Any]:
    """The first message to the child: it runs on the CPU, without a cache of earlier prompts."""
    load = Load(
        context_tokens=_context_tokens(settings),
        batch_tokens=settings.pass_tokens,
        microbatch_tokens=settings.pass_tokens,
        sequences=_SEQUENCES,
        unified=True,
        flash_attention=True,
    )
    setup = LlamaCppSetup(embeddings=True, repack=False, cache_ram_mib=0, ctx_checkpoints=0)
    fixed = {"fit_params": False, "cache_prompt": False, "cache_idle_slots": False}
    pooling = ("llama_pooling_type", f"LLAMA_POOLING_TYPE_{settings.pooling.name}")
    return {
        "model": str(path),
        "enums": {**enum_parameters(load, setup), "pooling_type": pooling},
        "threads": settings.threads,
        "parameters": private_server() | parameters(load, setup) | fixed,
    }


def _batches(texts: Sequence[Sequence[int]], most_tokens: int) -> Iterator[Sequence[Sequence[int]]]:
    """Cuts the texts, in order, into batches of at most `most_tokens` tokens and _SEQUENCES texts."""
    start = tokens = 0
    for end, text in enumerate(texts):
        if end > start and (tokens + len(text) > most_tokens or end - start == _SEQUENCES):
            yield texts[start:end]
            start, tokens = end, 0
        tokens += len(text)
    if start < len(texts):
        yield texts[start:]


def _copy_vectors(vectors: Sequence[str], into: Floats) -> None:
    """Decodes vectors in base64. Raises EngineError if their number or length is wrong."""
    if len(vectors) != len(into):
        raise EngineError(f"{ENGINE.name} returned {len(vectors)} vectors for {len(into)} texts")
    for row, vector in zip(into, vectors, strict=True):
        floats = np.frombuffer(base64.b64decode(vector), dtype="<f4")
        if floats.shape != row.shape:
            raise EngineError(
                f"{ENGINE.name} returned {len(floats)} numbers, but the file says {len(row)}"
            )
        row[:] = floats


def _context_tokens(settings: ChildSettings) -> int:
    """A context longer than any text of a pass, in steps of _SPARE_TOKENS."""
    return -(-(settings.pass_tokens + _SPARE_TOKENS) // _SPARE_TOKENS) * _SPARE_TOKENS


def _number(header: FileHeader, key: str) -> int:
    """A number from the file's metadata: the largest of a per-layer list, and 0 if the key is missing."""
    value = header.keys.get(f"{header.keys.get('general.architecture')}.{key}", 0)
    values = value if isinstance(value, tuple) else (value,)
    return max((entry for entry in values if isinstance(entry, int) and entry > 0), default=0)
