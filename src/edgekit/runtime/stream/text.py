"""A GGUF file -> what turns texts into its tokens and tokens into text, and the chat format it was taught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edgekit.embed.file import WeightFile
from edgekit.embed.tokenizer import TextTokenizer, build_tokenizer, read_vocabulary
from edgekit.embed.types import Limits
from edgekit.embed.walk import walk
from edgekit.runtime.stream.pieces import TextPieces
from edgekit.runtime.stream.templates import ChatFormat, chat_format

ANY_FILE = replace(Limits(), file_bytes=2**62)  # weights are streamed: their size is no danger


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    tokenizer: TextTokenizer
    pieces: TextPieces
    chat: ChatFormat | None  # None: it was taught none that is known here


@contextmanager
def open_text(path: Path | str) -> Iterator[FileText]:
    """UnknownTokenizerError where its vocabulary is of a kind that is not known here."""
    with closing(WeightFile(Path(path), ANY_FILE)) as file:
        walked = walk(file, wanted=lambda _: False)
        yield FileText(
            tokenizer=build_tokenizer(read_vocabulary(file, walked)),
            pieces=TextPieces(file, walked),
            chat=chat_format(file, walked),
        )
