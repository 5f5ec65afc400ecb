"""`check` and `compare`: ask, and print the answer as text, a table or JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit.app.answers import Check, Unanswered
from edgekit.app.check import check, check_all, worst_code
from edgekit.app.compare import compare
from edgekit.cli.input import references
from edgekit.cli.options import (
    counting,
    reach_of,
    screen,
)
from edgekit.cli.output import ReaderGoneError, show
from edgekit.engines import engine_names, every_engine
from edgekit.engines.flags import read
from edgekit.errors import UsageError
from edgekit.formats.types import Depth
from edgekit.report.bill import compare_json, compare_text
from edgekit.report.check import check_text, quiet_text
from edgekit.report.json import json_text
from edgekit.report.tables import answers_json, check_table, models_json, table_pieces
from edgekit.request import Request, Session
from edgekit.terminal import printable
from edgekit.units import MIB, format_bytes, parse_size

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.app.answers import Answer
    from edgekit.engines.commands import Command
    from edgekit.sources.download import Download


UNASKED_DOWNLOAD_BYTES = 512 * MIB  # downloads up to this size need no question


def for_program(ready: tuple[Command, ...], program: str | None) -> tuple[Command, ...]:
    """Those of one program, as --for names it; all where none was named."""
    if program is None:
        return ready
    wanted = _plain(program)
    found = tuple(one for one in ready if wanted in {_plain(one.program), _plain(one.name)})
    if ready and not found:
        here = dict.fromkeys(one.program for one in ready)
        others = (one for one in every_engine() if not here.keys() <= set(one.for_programs))
        engine = next((one for one in others if wanted in map(_plain, one.for_programs)), None)
        hint = "" if engine is None else f", or add --engine {engine.name}"
        raise UsageError(
            f"--for: no command for {program[:40]!r} here; choose one of {', '.join(here)}{hint}"
        )
    return found


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def pasted(ready: tuple[Command, ...]) -> str:
    """One text as it is, ready for a shell or a file, what is to be known of it on standard error; of several each
    under its name, with notes as comments.
    """
    if len(ready) == 1:
        for note in ready[0].notes:
            print(f"edgekit: {note}", file=sys.stderr)
        return f"{ready[0].text}\n"
    told = (["# " + one.name, *(f"# {note}" for note in one.notes), one.text] for one in ready)
    return "\n\n".join("\n".join(lines) for lines in told) + "\n"


def run_check(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer as text, and the verdict as an exit code."""
    request = Request.from_argv(arguments)  # errors in flags come before anything is read
    names = references(arguments.models)
    alone = len(names) == 1
    if arguments.program is not None and (not alone or len(request.engines) > 1):
        raise UsageError("--for prints the command of one model and one engine")
    depth = Depth.TENSORS if arguments.json or arguments.exact else Depth.ARCHITECTURE
    with reach_of(arguments, quiet=arguments.quiet or (arguments.json and alone)) as reach:
        if alone:
            session = Session(reach=reach, confirm=confirmed(arguments, alone=True))
            quiet = arguments.quiet
            found = [check(names[0], request, session, depth=depth, with_changes=not quiet)]
        else:
            answers = check_all(names, request, Session(reach=reach), depth=depth)
            coming = counting(answers, len(names), reach.progress)
            if not arguments.json:
                return "", worst_code(_show_table(coming), strict=arguments.strict)
            found = list(coming)
    code = worst_code(found, strict=arguments.strict)
    return _render([answer for answers in found for answer in answers], arguments), code


def confirmed(arguments: argparse.Namespace, *, alone: bool) -> Callable[[Download], bool] | None:
    """Downloads up to the limit are made; for larger ones a person is asked, a program is refused.

    With several models nothing is downloaded: no limit was given for their sum.
    """
    if arguments.no_download or not alone:
        return None

    limit = UNASKED_DOWNLOAD_BYTES
    if arguments.download_up_to is not None:
        limit = read("--download-up-to", parse_size, arguments.download_up_to)
    asks = not (arguments.json or getattr(arguments, "quiet", False)) and _is_person()

    def confirm(download: Download) -> bool:
        return download.size_bytes <= limit or (asks and _ask(download))

    return confirm


def _is_person() -> bool:
    return all(getattr(one, "isatty", lambda: False)() for one in (sys.stdin, sys.stderr))


def _ask(download: Download) -> bool:

    sys.stderr.write(
        f"\r{printable(download.because)}\nDownload {format_bytes(download.size_bytes)} to "
        f"{printable(str(download.folder))} and inspect it? [y/N] "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _show_table(coming: Iterable[list[Answer]]) -> list[list[Answer]]:
    """Writes a table of several models row by row. Returns the answers, up to where the reader had seen enough."""
    found: list[list[Answer]] = []

    def rows() -> Iterator[Answer]:
        for answers in coming:
            found.append(answers)
            yield from answers

    with suppress(ReaderGoneError):
        for piece in table_pieces(rows(), screen()):
            if sys.stdout is not None:  # without one, the exit code is the answer
                show(piece)
    return found


def _render(answers: Sequence[Answer], arguments: argparse.Namespace) -> str:

    if len(answers) == 1 and isinstance(answers[0], Unanswered):
        raise answers[0].error  # told as every error is
    if arguments.program is not None and isinstance(answers[0], Check) and answers[0].ready:
        ready = for_program(answers[0].ready, arguments.program)
        if not arguments.json:
            return pasted(ready)
        bill = replace(answers[0].bill, command=ready[-1].text)
        answers = [replace(answers[0], bill=bill)]
    if arguments.json:
        return json_text(answers_json(answers))
    return _as_text(answers, arguments)


def _as_text(answers: Sequence[Answer], arguments: argparse.Namespace) -> str:

    if len(answers) > 1 or not isinstance(answers[0], Check):
        return check_table(answers, screen())
    if arguments.quiet:
        return quiet_text(answers[0])
    return check_text(answers[0], screen(), why=arguments.why)


def run_compare(arguments: argparse.Namespace) -> str:
    """The answer as text. A model or an engine that fails is a row; where all do, an error."""
    request = Request.from_argv(arguments)  # errors in flags come before anything is read
    names = references(arguments.models)
    if len(names) > 1 or arguments.engine is not None:
        return _models(names, request, arguments)
    if request.devices or request.ram or request.vram or request.job:
        return _models(names, replace(request, engines=engine_names()), arguments)
    return _engines(names[0], request, arguments)


def _engines(name: str, request: Request, arguments: argparse.Namespace) -> str:

    with reach_of(arguments, quiet=arguments.json) as reach:
        found = compare(name, request, Session(reach=reach))
    if arguments.json:
        return json_text(compare_json(found, name))

    return compare_text(found, screen(colour=False))


def _models(names: tuple[str, ...], request: Request, arguments: argparse.Namespace) -> str:
    """Judged as `check` judges them; one model by every engine."""
    with reach_of(arguments, quiet=arguments.json) as reach:
        answers = check_all(names, request, Session(reach=reach))
        found = counting(answers, len(names), reach.progress)
        rows = [row for answers in found for row in answers]
    if not any(isinstance(row, Check) for row in rows):
        raise next(row.error for row in rows if isinstance(row, Unanswered))
    return _rendered(rows, arguments)


def _rendered(rows: list[Check | Unanswered], arguments: argparse.Namespace) -> str:
    if arguments.json:
        return json_text(models_json(rows))

    return check_table(rows, screen(), sizes=True)
