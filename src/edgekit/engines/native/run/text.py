"""A GGUF file -> what turns texts into its tokens and tokens into text, and the chat format it was taught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edgekit.engines.native.file import WeightFile
from edgekit.engines.native.run.pieces import TextPieces
from edgekit.engines.native.run.templates import ChatFormat, chat_format
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.text import TextTokenizer
from edgekit.engines.native.tokenizer.vocabulary import read_vocabulary
from edgekit.engines.native.types import Limits
from edgekit.engines.native.walk import walk

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
