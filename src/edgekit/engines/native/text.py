"""Text for the built-in engine: prompts to tokens, new tokens to text, and conversations."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.engines.chat import Fitted, GenerationResult, Prompt, Sampling, until_stop
from edgekit.engines.native.file import ANY_SIZE, WeightFile, scan_header
from edgekit.engines.native.sampler import Sampler
from edgekit.engines.native.templates import ChatFormat, chat_format
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.kinds import Method
from edgekit.engines.native.tokenizer.text import TextTokenizer
from edgekit.engines.native.tokenizer.vocabulary import (
    SPACE,
    TokenKind,
    Vocabulary,
    answer_ends,
    read_vocabulary,
)
from edgekit.errors import ContextTooLargeError, HeaderError, TextError, UsageError, quoted

if TYPE_CHECKING:
    from edgekit.engines.native.crew import Checkpoint
    from edgekit.engines.native.file import FileHeader
    from edgekit.engines.native.generator import StreamEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """How a model's file turns text into tokens, tokens into text, and messages into prompts."""

    tokenizer: TextTokenizer
    pieces: TextPieces
    chat: ChatFormat | None  # None: unknown


@contextmanager
def open_text(path: Path | str) -> Iterator[FileText]:
    """Reads the vocabulary and the chat format of a file. Raises UnknownTokenizerError for an unknown vocabulary."""
    with WeightFile(Path(path), ANY_SIZE) as file:
        header = scan_header(file, selects=lambda _: False)
        vocabulary = read_vocabulary(file, header)
        text = FileText(
            tokenizer=build_tokenizer(vocabulary),
            pieces=TextPieces(file, header, vocabulary),
            chat=chat_format(file, header, vocabulary.named),
        )
        del vocabulary  # a few MB that are no longer needed
        yield text


def generate(
    engine: StreamEngine,
    tokens: Sequence[int],
    sampler: Sampler,
    *,
    max_tokens: int | None,
    stop: frozenset[int],
    checkpoint: Checkpoint | None = None,
) -> Iterator[int]:
    """Yields new tokens after the prompt, until there are `max_tokens`, or before a token of `stop`.

    Without `max_tokens`, a window that does not roll ends the answer when it is full. Raises ContextTooLargeError
    before anything is computed if the prompt and `max_tokens` do not fit. Closing the iterator ends the work. After
    that, or after `max_tokens`, the engine has not read the last token yet.
    """
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"the number of new tokens must be at least 1 (got {max_tokens})")
    # The last new token is not read, so it needs no cell.
    capacity_tokens, needed_tokens = engine.room_tokens, len(tokens) + (max_tokens or 1) - 1
    if capacity_tokens is not None and needed_tokens > capacity_tokens:
        window, position = engine.plan.context_tokens, engine.position
        in_use = f" ({position:,} are in use)" if position else ""
        new = f" plus {max_tokens:,} new ones" if max_tokens is not None else ""
        raise ContextTooLargeError(
            f"a prompt of {len(tokens):,} tokens{new} does not fit in the context of "
            f"{window:,}{in_use}: use a context of {position + needed_tokens:,} or more, or a "
            "rolling window"
        )

    def new_tokens() -> Iterator[int]:
        logits = engine.feed(tokens, checkpoint)
        for token in tokens:
            sampler.accept(token)
        count = 0
        while True:
            token = sampler.sample(logits)
            sampler.accept(token)
            if token in stop:
                return
            yield token
            count += 1
            if count == max_tokens or engine.room_tokens == 0:
                return
            logits = engine.feed((token,), checkpoint)

    return new_tokens()


_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


class TextPieces:
    """Turns the tokens of one answer at a time into text. Reads their texts from the file, which must stay open."""

    def __init__(self, file: WeightFile, header: FileHeader, vocabulary: Vocabulary) -> None:
        self._file = file
        self._offset, self._text_ends = vocabulary.tokens.offset, vocabulary.tokens.ends
        self._kinds = vocabulary.kinds
        self.ends = answer_ends(file, header, vocabulary)  # tokens that end an answer
        pre = vocabulary.pre
        spells_bytes = vocabulary.family.method is Method.BPE and not (pre and pre.raw)
        self._letters = _byte_letters() if spells_bytes else None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that this token completes; none for a token that is not shown. Raises TextError."""
        return self._decoder.decode(self.piece(token))

    def flush(self) -> str:
        """Ends an answer. Returns a replacement character if its last character is incomplete."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

    def piece(self, token: int) -> bytes:
        """The bytes of one token; none for control tokens and unused ones."""
        if not 0 <= token < len(self._kinds):
            raise TextError(f"token {token:,} does not exist: there are {len(self._kinds):,}")
        kind = self._kinds[token]
        if kind not in (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.BYTE):
            return b""
        # `_text_ends` counts the bytes of the texts; in the file, each text follows 8 bytes with its length.
        begin = self._text_ends[token - 1] if token else 0
        offset = self._offset + 8 * (token + 1) + begin
        raw = self._file.read(offset, self._text_ends[token] - begin)
        if kind == TokenKind.USER_DEFINED:
            return raw
        if kind == TokenKind.BYTE:
            if not (byte := _BYTE.fullmatch(raw)):
                raise HeaderError(
                    f"tokenizer.ggml.tokens[{token}] is {quoted(raw)}, which is not a byte like <0x0A>",
                    file=self._file.name,
                )
            return bytes((int(byte[1], 16),))
        if self._letters is None:
            return raw.replace(SPACE.encode(), b" ")
        # A letter that does not encode a byte stands for itself.
        return b"".join(
            self._letters.get(letter) or letter.encode() for letter in raw.decode(errors="replace")
        )


def _byte_letters() -> dict[str, bytes]:
    """GPT-2's letters for the 256 bytes: printable bytes are themselves, the others are U+0100 and up."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(0x100)) - set(shown))
    letters = dict(zip(map(chr, shown), shown, strict=True))
    letters |= {chr(0x100 + index): byte for index, byte in enumerate(hidden)}
    return {letter: bytes((byte,)) for letter, byte in letters.items()}


# --- a conversation


@dataclass(slots=True, kw_only=True)
class StreamTextGenerator:
    """A conversation. If a prompt continues the last one, only its new part is read."""

    engine: StreamEngine
    text: FileText
    _read: list[int] = field(default_factory=list)

    @property
    def window_tokens(self) -> int:
        return self.engine.plan.context_tokens

    @property
    def reads_beyond(self) -> bool:
        """Whether a prompt may be longer than the window."""
        return self.engine.plan.rolling

    def tokens(self, prompt: Prompt) -> list[int]:
        tokens = prompt_tokens(self.text, prompt)
        if not tokens:
            raise TextError("the prompt has no tokens")
        return tokens

    def write(
        self, fitted: Fitted, sampling: Sampling, *, into: GenerationResult
    ) -> Generator[str, None, None]:
        """The text of the answer, piece by piece; `into` gets the counts, the reason for its end, and the timings."""
        tokens, max_tokens = fitted.tokens or (), fitted.max_tokens
        sampler = Sampler(sampling, self.engine.vocabulary)
        unread = self._prepare_unread(tokens)
        # The repeat penalty counts tokens that were read before, too.
        for token in tokens[: len(tokens) - len(unread)]:
            sampler.accept(token)
        self.text.pieces.flush()  # an earlier answer may have been interrupted
        into.prompt_tokens = len(tokens)
        begun_s = first_s = time.monotonic()

        def pieces() -> Iterator[str]:
            nonlocal first_s
            for token in generate(
                self.engine, unread, sampler, max_tokens=max_tokens, stop=self.text.pieces.ends
            ):
                if not into.new_tokens:
                    first_s = time.monotonic()
                into.new_tokens += 1
                self._read.append(token)
                yield self.text.pieces.push(token)
            yield self.text.pieces.flush()

        try:
            was_stopped = yield from until_stop(pieces(), sampling.stop)
            is_at_limit = max_tokens is not None and into.new_tokens >= max_tokens
            is_full = not self.engine.plan.rolling and self.engine.position >= self.window_tokens
            is_cut = not was_stopped and (is_at_limit or is_full)
            into.finish = "length" if is_cut else "stop"
        finally:
            into.timings = {}
            if first_s > begun_s:
                into.timings["prompt_per_second"] = len(unread) / (first_s - begun_s)
            rest_s = time.monotonic() - first_s
            if into.new_tokens > 1 and rest_s > 0:
                into.timings["predicted_per_second"] = (into.new_tokens - 1) / rest_s

    def _prepare_unread(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens that the engine must still read. Resets the engine if they do not continue its session.

        `_read` has the last prompt and its answer, whose last token the engine may not have read yet.
        """
        read_count, fed_count = len(self._read), self.engine.position
        is_continued = (
            0 < fed_count <= read_count < len(tokens) and list(tokens[:read_count]) == self._read
        )
        if is_continued and not self.engine.needs_reset:
            unread = tokens[fed_count:]
        else:
            self.engine.reset()
            unread = tokens
        self._read = list(tokens)
        return unread


def prompt_tokens(text: FileText, prompt: Prompt) -> list[int]:
    """The tokens of a prompt, in the model's chat format or plain. Raises UsageError for an unknown format."""
    if not prompt.is_text:
        raise UsageError("the built-in engine takes text only, without images, tools or tool calls")
    if prompt.is_plain:
        return [*text.tokenizer.before, *text.tokenizer.encode_plain(prompt.text)]
    if text.chat is None:
        raise UsageError(
            "the built-in engine does not know this model's chat format: use --raw to "
            "continue the text as it is, or --engine llama.cpp, which uses the model's "
            "own template"
        )
    return text.chat.tokens(text.tokenizer, prompt.messages)
