"""The terminal of a command: its session with a progress line, the width and colours of the screen, printed lines."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from edgekit.cli import ReaderGoneError, show
from edgekit.cli.flags import NETWORK_TIMEOUT_S
from edgekit.report.text import Screen, glyphs_for
from edgekit.request import Session
from edgekit.sources.types import Reach

if TYPE_CHECKING:
    from edgekit.sources.download import Download

T = TypeVar("T")


@contextmanager
def open_session(
    arguments: argparse.Namespace,
    *,
    quiet: bool,
    confirm: Callable[[Download], bool] | None = None,
    notify: Callable[[object], None] = lambda _event: None,
) -> Iterator[Session]:
    """A session with the network options of the command. Clears its progress line at the end."""
    reach = Reach(
        network=not arguments.offline,
        cache=not arguments.no_cache,
        total_timeout_s=arguments.timeout or NETWORK_TIMEOUT_S,
        progress=show_progress if is_terminal(sys.stderr) and not quiet else None,
    )
    try:
        yield Session(reach=reach, confirm=confirm, notify=notify, may_ask=True)
    finally:
        if reach.progress is not None:
            show_progress("")


def show_progress(line: str) -> None:
    """Replace the progress line on standard error; '' clears it."""
    sys.stderr.write(f"\r\x1b[K{line[:100]}")
    sys.stderr.flush()


def count_progress(
    items: Iterable[T], total: int, progress: Callable[[str], None] | None
) -> Iterator[T]:
    """Yield the checked models and count them on the progress line, which is cleared while the caller prints one."""
    show_line = progress or (lambda _: None)
    show_line(f"checked 0 of {total:,} models")
    for done, item in enumerate(items, 1):
        show_line("")
        yield item
        show_line(f"checked {done:,} of {total:,} models")
    show_line("")


def is_terminal(stream: object) -> bool:
    """Whether the stream is a terminal with colour and cursor movement."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return not plain and bool(getattr(stream, "isatty", lambda: False)())


def screen_width() -> int:
    """Columns of the terminal, or COLUMNS; 100 if neither is known."""
    return shutil.get_terminal_size((100, 24)).columns


def screen(stream: object = None, *, colour: bool = True) -> Screen:
    """The width, colours and characters of the stream, standard output by default."""
    output = sys.stdout if stream is None else stream
    return Screen(
        width=screen_width(),
        colour=colour and is_terminal(output),
        glyphs=glyphs_for(getattr(output, "encoding", None)),
    )


def print_line(line: str) -> None:
    """Print one line of a server, which continues even if standard output is closed."""
    with suppress(ReaderGoneError):
        show(f"{line}\n")


def print_event(event: Mapping[str, Any]) -> None:
    print_line(json.dumps(dict(event)))
