"""An answer for elsewhere: files by their names in a folder. Nobody there needs to know where that folder lies."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgekit.sources.local import data_folder, is_folder
from edgekit.sources.stores import hub_cache_folder
from edgekit.web.types import WebSettings, resolved

Json = dict[str, Any]


def without_folders(answer: Json, settings: WebSettings) -> Json:
    """As it is where only this machine is answered: a terminal here understands whole paths."""
    if settings.is_loopback:
        return answer
    text = json.dumps(answer, ensure_ascii=False)
    folders = _pattern(tuple(_folders(settings)))
    if folders.search(text) is None:
        return answer
    told: Json = json.loads(folders.sub(_name_inside, text))
    return told


def text_without_folders(text: str, settings: WebSettings) -> str:
    """The same of a sentence."""
    return str(without_folders({"text": text}, settings)["text"])


def _folders(settings: WebSettings) -> Iterator[Path]:
    """Those that were given, of a file the one it lies in, and those that messages of errors may name."""
    for one in resolved(settings.models_dirs):
        yield one if is_folder(one) else one.parent
    yield from (hub_cache_folder(), Path(os.path.expanduser("~")))  # noqa: PTH111 - Path's raises
    yield from filter(None, (data_folder(),))
    for name in ("OLLAMA_MODELS", "EDGEKIT_CACHE"):
        if os.environ.get(name):
            yield Path(os.environ[name])


@lru_cache(maxsize=8)
def _pattern(folders: tuple[Path, ...]) -> re.Pattern[str]:
    """A folder where no longer path and no address goes on in front of it, and what divides it from a name inside."""
    said = {text for one in folders if one.is_absolute() for text in _spellings(one)}
    either = "|".join(re.escape(one) for one in sorted(said, key=len, reverse=True)) or r"(?!)"
    return re.compile(rf"(?<![\w./:~-])(?:{either})(?:(/|\\\\)|(?![\w.-]))")


def _spellings(folder: Path) -> Iterator[str]:
    """In JSON: as it is, and as a shell is told of one with a quotation mark in it. Not where it is the whole disk."""
    if folder.parent == folder:
        return
    for text in {str(folder), str(folder).replace("'", "'\"'\"'")}:
        yield json.dumps(text, ensure_ascii=False)[1:-1]


def _name_inside(found: re.Match[str]) -> str:
    return "" if found[1] else "."
