"""`edgekit check MODEL`: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from edgekit.cli.options import (
    CHOSEN_CONTEXT,
    ENVIRONMENT,
    MODEL_FORMS,
    add_device_options,
    add_engine_flags,
    add_job_option,
    add_limit_options,
    add_min_context_option,
    add_reach_options,
    add_users_option,
    add_window_budget_option,
    counting,
    reach_of,
    screen,
)
from edgekit.cli.parser import COMMANDS
from edgekit.engines import machine_keys
from edgekit.errors import UsageError
from edgekit.units import MIB, format_bytes, parse_size

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.app.answers import Answer
    from edgekit.engines.commands import Command
    from edgekit.sources.download import Download

UNASKED_DOWNLOAD_BYTES = 512 * MIB  # downloads up to this size need no question

_DESCRIPTION = (
    "Will the model fit in the memory of this machine, or of another? Prints the verdict, the memory it needs next to "
    "what is free, the command to run it, and what would change the answer. Reads only headers, never weights."
)
_EXAMPLES = """
Several models, a folder of models, or - (names on standard input) give a table.

examples:
  edgekit check qwen3-8b --device "RTX 4060"
  edgekit check "Gemma 3 27B" --quant Q8_0 -c 32k --vram 24G,24G --ram 64G
  edgekit check ~/models

exit codes: 0 it loads (1 if it is tight and --strict is given), 3 does not fit or cannot run there, 2 wrong usage or
refused by the engine, 4 not found, no access or no network, 5 unreadable or unsupported. Several models: the worst
code; several engines: the best.
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check",
        help=COMMANDS["check"],
        usage="edgekit check MODEL ... [--quant NAME] [-c N] [--device NAME] [--engine NAME] [options]",
        description=_DESCRIPTION,
        epilog=MODEL_FORMS + _EXAMPLES + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="file, folder, hub id, URL or name; - reads names from standard input",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument("--quiet", action="store_true", help="print the headline only")
    parser.add_argument(
        "--why",
        action="store_true",
        help="add the memory breakdown, the reasons and how each figure is known",
    )
    add_program_option(parser)
    parser.add_argument(
        "--exact",
        action="store_true",
        help="read the whole header of a remote model, even if its start is enough to answer (--json always does)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with code 1 if the model only just fits (tight)"
    )
    add_users_option(parser)
    add_min_context_option(parser)
    add_job_option(parser)
    add_window_budget_option(parser)
    add_download_options(parser)
    add_device_options(parser)
    add_limit_options(parser)
    add_reach_options(parser)
    add_engine_flags(parser, several=True, context_help=CHOSEN_CONTEXT, without=machine_keys())
    parser.set_defaults(run=run)


def add_download_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hub models that must be downloaded to be inspected")
    group.add_argument(
        "--download-up-to",
        metavar="SIZE",
        help="largest download to make without asking (default 512M)",
    )
    group.add_argument(
        "--no-download", action="store_true", help="never download, not even to inspect a model"
    )


def add_program_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="program",
        metavar="PROGRAM",
        help="print only the command or settings for this program: llama-server, ollama, lm-studio ...",
    )


def for_program(ready: tuple[Command, ...], program: str | None) -> tuple[Command, ...]:
    """Those of one program, as --for names it; all where none was named."""
    if program is None:
        return ready
    wanted = _plain(program)
    found = tuple(one for one in ready if wanted in {_plain(one.program), _plain(one.name)})
    if ready and not found:
        from edgekit.engines import every_engine

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


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer as text, and the verdict as an exit code."""
    from edgekit.app.check import check, check_all, worst_code
    from edgekit.cli.input import references
    from edgekit.formats.types import Depth
    from edgekit.request import Request, Session

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
    from edgekit.engines.flags import read

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
    from edgekit.terminal import printable

    sys.stderr.write(
        f"\r{printable(download.because)}\nDownload {format_bytes(download.size_bytes)} to "
        f"{printable(str(download.folder))} and inspect it? [y/N] "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _show_table(coming: Iterable[list[Answer]]) -> list[list[Answer]]:
    """Writes a table of several models row by row. Returns the answers, up to where the reader had seen enough."""
    from edgekit.cli.output import ReaderGoneError, show
    from edgekit.report.tables import table_pieces

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
    from dataclasses import replace

    from edgekit.app.answers import Check, Unanswered

    if len(answers) == 1 and isinstance(answers[0], Unanswered):
        raise answers[0].error  # told as every error is
    if arguments.program is not None and isinstance(answers[0], Check) and answers[0].ready:
        ready = for_program(answers[0].ready, arguments.program)
        if not arguments.json:
            return pasted(ready)
        bill = replace(answers[0].bill, command=ready[-1].text)
        answers = [replace(answers[0], bill=bill)]
    if arguments.json:
        from edgekit.report.json import json_text
        from edgekit.report.tables import answers_json

        return json_text(answers_json(answers))
    return _as_text(answers, arguments)


def _as_text(answers: Sequence[Answer], arguments: argparse.Namespace) -> str:
    from edgekit.app.answers import Check
    from edgekit.report.check import check_text, quiet_text

    if len(answers) > 1 or not isinstance(answers[0], Check):
        from edgekit.report.tables import check_table

        return check_table(answers, screen())
    if arguments.quiet:
        return quiet_text(answers[0])
    return check_text(answers[0], screen(), why=arguments.why)
