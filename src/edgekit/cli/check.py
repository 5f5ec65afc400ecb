"""`check` and `compare`: the answer as text, a table or JSON. Also what they share with `plan`: downloads and --for."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit.app.check import (
    Answer,
    Check,
    Unanswered,
    check,
    check_all,
    exit_code,
    worst_code,
)
from edgekit.app.compare import compare
from edgekit.cli import ReaderGoneError, show, warn
from edgekit.cli.console import count_progress, open_session, screen
from edgekit.engines import engine_names, every_engine
from edgekit.engines.flags import read
from edgekit.errors import UsageError, printable
from edgekit.formats.types import Depth
from edgekit.report.bill import compare_json, compare_text
from edgekit.report.check import check_text, quiet_text
from edgekit.report.json import json_text
from edgekit.report.tables import answers_json, check_table, models_json, table_pieces
from edgekit.request import Request
from edgekit.sources.local import models_in
from edgekit.units import MIB, format_bytes, parse_size

if TYPE_CHECKING:
    from edgekit.engines.commands import Command
    from edgekit.sources.download import Download


MAX_MODELS = 10_000  # in one command; a folder with more was probably given by mistake
UNASKED_DOWNLOAD_BYTES = 512 * MIB  # smaller downloads need no confirmation


def run_check(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer as text, and the verdict as an exit code."""
    request = Request.from_argv(arguments)  # errors in flags come before anything is read
    names = references(arguments.models)
    is_one = len(names) == 1
    if arguments.program is not None and (not is_one or len(request.engines) > 1):
        raise UsageError("--for prints the command of one model and one engine")
    if arguments.ladder:
        return _run_ladder(names, request, arguments)
    depth = Depth.TENSORS if arguments.json or arguments.exact else Depth.ARCHITECTURE
    # --download-up-to limits the download for one model, not the sum for several
    confirm = download_confirmation(arguments) if is_one else None
    quiet = arguments.quiet or (arguments.json and is_one)
    with open_session(arguments, quiet=quiet, confirm=confirm) as session:
        if is_one:
            with_changes = not arguments.quiet
            answers_by_model = [
                check(names[0], request, session, depth=depth, with_changes=with_changes)
            ]
        else:
            batches = check_all(names, request, session, depth=depth)
            batches = count_progress(batches, len(names), session.reach.progress)
            if not arguments.json:
                return "", worst_code(_show_table(batches), strict=arguments.strict)
            answers_by_model = list(batches)
    code = worst_code(answers_by_model, strict=arguments.strict)
    answers = [answer for of_model in answers_by_model for answer in of_model]
    first = answers[0]
    if len(answers) == 1 and isinstance(first, Unanswered):
        raise first.error
    if arguments.program is not None and isinstance(first, Check) and first.ready:
        ready = for_program(first.ready, arguments.program)
        if not arguments.json:
            return paste_text(ready), code
        answers = [replace(first, bill=replace(first.bill, command=ready[-1].text))]
    if arguments.json:
        return json_text(answers_json(answers)), code
    if len(answers) > 1 or not isinstance(first, Check):
        return check_table(answers, screen()), code
    if arguments.quiet:
        return quiet_text(first), code
    return check_text(first, screen(), why=arguments.why), code


def _run_ladder(
    names: Sequence[str], request: Request, arguments: argparse.Namespace
) -> tuple[str, int]:
    """Every quantisation of one model; the exit code is that of the one that is chosen."""
    from edgekit.app.ladder import ladder
    from edgekit.report.ladder import ladder_json, ladder_text

    if len(names) > 1:
        raise UsageError("--ladder lists the quantisations of one model: name one")
    for flag in ("program", "quiet", "why"):
        if getattr(arguments, flag):
            name = "for" if flag == "program" else flag
            raise UsageError(f"--ladder is a table of its own: leave out --{name}")
    confirm = download_confirmation(arguments)
    with open_session(arguments, quiet=arguments.json, confirm=confirm) as session:
        answer = ladder(names[0], request, session)
    code = exit_code([answer.chosen.answer], strict=arguments.strict)
    return (
        json_text(ladder_json(answer)) if arguments.json else ladder_text(answer, screen())
    ), code


def _show_table(batches: Iterable[list[Answer]]) -> list[list[Answer]]:
    """Write a table of several models row by row. Returns the answers that were written before the pipe was closed."""
    shown_answers: list[list[Answer]] = []

    def rows() -> Iterator[Answer]:
        for answers in batches:
            shown_answers.append(answers)
            yield from answers

    with suppress(ReaderGoneError):
        for piece in table_pieces(rows(), screen()):
            if sys.stdout is not None:  # if it is closed, the answer is only an exit code
                show(piece)
    return shown_answers


def references(words: Sequence[str]) -> tuple[str, ...]:
    """The models to check: folders replaced by the models in them, `-` by the names on standard input."""
    for word in dict.fromkeys(word for word in words if words.count(word) > 1):
        warn(f"{word} was given more than once and is shown once")
    names: dict[str, None] = {}  # an ordered set
    for word in words:
        for reference in _stdin_lines() if word == "-" else (word,):
            # models_in("") would list the current folder, and a name with a NUL would raise ValueError
            models = models_in(reference) if reference and "\0" not in reference else (reference,)
            names |= dict.fromkeys(models)
            if len(names) > MAX_MODELS:
                raise UsageError(f"more than {MAX_MODELS:,} models at once")
    if not names:
        raise UsageError("no model given")
    return tuple(names)


def _stdin_lines() -> Iterator[str]:
    """The names on standard input, without blank lines and comments."""
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # file names may be any bytes
    for line in sys.stdin:
        name = line.strip().lstrip("\ufeff")  # a BOM, as Windows writes it
        if name and not name.startswith("#"):
            yield name


def download_confirmation(arguments: argparse.Namespace) -> Callable[[Download], bool] | None:
    """Allows downloads up to the limit. Larger ones need a yes at the terminal, and are refused without one."""
    if arguments.no_download:
        return None
    limit = UNASKED_DOWNLOAD_BYTES
    if arguments.download_up_to is not None:
        limit = read("--download-up-to", parse_size, arguments.download_up_to)
    is_quiet = arguments.json or getattr(arguments, "quiet", False)
    has_terminal = all(
        getattr(stream, "isatty", lambda: False)() for stream in (sys.stdin, sys.stderr)
    )
    asks = has_terminal and not is_quiet

    def confirm(download: Download) -> bool:
        if download.size_bytes <= limit or not asks:
            return download.size_bytes <= limit
        sys.stderr.write(
            f"\r{printable(download.because)}\nDownload {format_bytes(download.size_bytes)} to "
            f"{printable(str(download.folder))} and inspect it? [y/N] "
        )
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    return confirm


def for_program(ready: tuple[Command, ...], program: str | None) -> tuple[Command, ...]:
    """The commands of the program that --for names; all if it is not given."""
    if program is None:
        return ready
    plain = plain_name(program)
    commands = tuple(
        command
        for command in ready
        if plain in {plain_name(command.program), plain_name(command.name)}
    )
    if ready and not commands:
        here = dict.fromkeys(command.program for command in ready)
        hint = ""
        for engine in every_engine():
            is_another = not here.keys() <= set(engine.for_programs)
            if is_another and plain in map(plain_name, engine.for_programs):
                hint = f", or add --engine {engine.name}"
                break
        raise UsageError(
            f"--for: no command for {program[:40]!r} here; choose one of {', '.join(here)}{hint}"
        )
    return commands


def plain_name(name: str) -> str:
    """'LM Studio' and 'lm-studio' are the same program: only letters and digits count."""
    return "".join(char for char in name.lower() if char.isalnum())


def paste_text(ready: tuple[Command, ...]) -> str:
    """The commands as text to paste.

    The notes of a single command go to standard error. Several commands are printed below their names, with notes as
    comments.
    """
    if len(ready) == 1:
        for note in ready[0].notes:
            warn(note)
        return f"{ready[0].text}\n"
    parts = (
        ["# " + command.name, *(f"# {note}" for note in command.notes), command.text]
        for command in ready
    )
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def run_compare(arguments: argparse.Namespace) -> str:
    """Engines for one model, or models on one machine. A failure is a row; if all fail, it is an error."""
    request = Request.from_argv(arguments)  # errors in flags come before anything is read
    names = references(arguments.models)
    has_machine = request.devices or request.ram or request.vram or request.cpu or request.job
    with open_session(arguments, quiet=arguments.json) as session:
        if len(names) == 1 and arguments.engine is None and not has_machine:
            comparison = compare(names[0], request, session)
            if arguments.json:
                return json_text(compare_json(comparison, names[0]))
            return compare_text(comparison, screen(colour=False))
        if len(names) == 1 and arguments.engine is None:
            request = replace(request, engines=engine_names())
        batches = count_progress(
            check_all(names, request, session), len(names), session.reach.progress
        )
        rows = [row for answers in batches for row in answers]
    if not any(isinstance(row, Check) for row in rows):
        raise next(row.error for row in rows if isinstance(row, Unanswered))
    if arguments.json:
        return json_text(models_json(rows))
    return check_table(rows, screen(), sizes=True)
