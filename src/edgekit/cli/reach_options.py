"""What every command that reads a model has: how to name it, how far to reach, where progress is shown."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.sources.types import Reach

T = TypeVar("T")
MODEL_FORMS = """\
MODEL is any of
  a file or folder          model.gguf, model-00001-of-00003.gguf, ./folder, config.json
  a Hugging Face id         org/name, org/name:Q4_K_M, org/name@revision, hf.co/org/name
  an address                https://huggingface.co/org/name/blob/main/file.gguf, any .gguf URL
  a model of the catalog    qwen3-8b, qwen3-8b:Q8_0, "Gemma 3 27B" (edgekit catalog list)
  Ollama or LM Studio       llama3.2:1b, a model's folder name
  a shipped sample          sample:gemma-3-27b, sample:qwen3-30b-a3b
"""
ENVIRONMENT = """\
environment: HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE, OLLAMA_MODELS, NO_COLOR,
HTTPS_PROXY, SSL_CERT_FILE, EDGEKIT_CACHE (folder for cached headers), EDGEKIT_OLLAMA_REGISTRY (a mirror of
Ollama's registry) and EDGEKIT_LLAMA_VERSION (the default of --llama-version).
"""


def add_reach_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-cache", action="store_true", help="do not read or write the header cache on disk"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=120.0,
        help="time limit for all network requests together (default 120)",
    )
    parser.add_argument("--offline", action="store_true", help="use local files and caches only")


@contextmanager
def reach_of(arguments: argparse.Namespace, *, quiet: bool) -> Iterator[Reach]:
    """How far these arguments let a look-up go. Progress is wiped away in the end."""
    from edgekit.sources.types import Reach

    reach = Reach(
        network=not arguments.offline,
        cache=not arguments.no_cache,
        total_timeout_s=arguments.timeout,
        progress=show_progress if is_terminal(sys.stderr) and not quiet else None,
    )
    try:
        yield reach
    finally:
        if reach.progress is not None:
            show_progress("")


def counting(coming: Iterable[T], of: int, progress: Callable[[str], None] | None) -> Iterator[T]:
    """The same models, counted on the progress line. The line is empty while a caller uses what it was given."""
    told = progress or (lambda _: None)
    told(f"checked 0 of {of:,} models")
    for done, one in enumerate(coming, 1):
        told("")
        yield one
        told(f"checked {done:,} of {of:,} models")
    told("")


def is_terminal(stream: object) -> bool:
    """Whether a person looks at it, and wants colour."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return not plain and bool(getattr(stream, "isatty", lambda: False)())


def screen_width() -> int:
    """Columns of the terminal, or of COLUMNS; 100 where nobody says."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 86_400:
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds, up to one day (got {text!r})"
        )
    return number


def show_progress(line: str) -> None:
    sys.stderr.write(f"\r\x1b[K{line[:100]}")
    sys.stderr.flush()
