"""A request and a prompt -> an answer, written as it comes; or a conversation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.app.run import DoesNotFitError, fetch, job_of, run
from edgekit.cli.output import NobodyReadsError, show
from edgekit.cli.prompts import check_text
from edgekit.cli.reach_options import reach_of
from edgekit.cli.run_options import DEFAULT_NEW_TOKENS
from edgekit.cli.run_requests import StderrNotices, download_limit, read_request, refusal
from edgekit.engines.chat import Fitted, Message, Prompt, Talker, Written, fit_prompt
from edgekit.errors import ContextTooLargeError, TextError, UsageError
from edgekit.report.as_json import json_text
from edgekit.report.run_json import answer_json
from edgekit.report.run_text import written_text
from edgekit.request import Request, Session

if TYPE_CHECKING:
    from edgekit.engines.sampling import Sampling

_ENDS = frozenset({"/exit", "/quit", "/bye"})
_RESET = frozenset({"/reset", "/clear"})


def answer(
    arguments: argparse.Namespace,
    prompt: Prompt | None,
    sampling: Sampling,
    max_tokens: int | None,
) -> tuple[str, int]:
    """`prompt` None: a conversation."""
    reference, request = read_request(arguments, "run")
    new_tokens = max_tokens or DEFAULT_NEW_TOKENS
    notices = StderrNotices(quiet=arguments.quiet or arguments.json)
    try:
        with reach_of(arguments, quiet=notices.quiet) as reach:
            session = Session(reach=reach, confirm=download_limit(arguments), notify=notices.show)
            # Before the prompt is counted, only what cannot hold any prompt is refused.
            job = job_of(prompt, 1, new_tokens)
            judged, weights = fetch(reference, request, session, job=job)
        with run(judged, weights, session, prompt=prompt, new_tokens=new_tokens) as (up, judged):
            writer = _Writer(talker=up.talker, request=request, sampling=sampling, notices=notices)
            if prompt is None:
                _converse(writer, arguments.system, max_tokens)
                return "", 0
            if not arguments.json:
                _print_answer(writer, prompt, new_tokens)
                return "", 0
            written = Written()
            text = "".join(writer.pieces(writer.fitted(prompt, new_tokens), written))
            found = answer_json(judged.check, text, written, rows=up.rows)
            return json_text(found), 0
    except DoesNotFitError as error:
        return refusal(error, as_json=arguments.json)
    except NobodyReadsError:
        return "", 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """An engine that is up, and how it is to write."""

    talker: Talker
    request: Request
    sampling: Sampling
    notices: StderrNotices

    def fitted(self, prompt: Prompt, max_tokens: int | None) -> Fitted:
        """Which part of the prompt is read, and how much can be written."""
        tokens = self.talker.tokens(prompt)
        if self.talker.reads_beyond:
            return Fitted(tokens=tuple(tokens), max_tokens=max_tokens)
        return fit_prompt(
            tokens,
            window_tokens=self.talker.window_tokens,
            max_tokens=max_tokens,
            sinks=self.request.sinks,
            rolling=self.request.rolling,
        )

    def pieces(self, fitted: Fitted, written: Written) -> Iterator[str]:
        most = fitted.max_tokens
        with closing(
            self.talker.write(fitted.tokens, self.sampling, max_tokens=most, into=written)  # type: ignore[type-var]  # both are generators
        ) as pieces:
            yield from pieces


# --- one question


def _print_answer(writer: _Writer, prompt: Prompt, new_tokens: int) -> None:
    fitted = writer.fitted(prompt, new_tokens)
    if fitted.note:
        writer.notices.say(fitted.note)
    written, piece = Written(), "\n"
    for piece in writer.pieces(fitted, written):
        show(piece)
    if not piece.endswith("\n"):
        show("\n")
    writer.notices.say(written_text(written, asked=new_tokens))


# --- a conversation


def _converse(writer: _Writer, system: str | None, max_tokens: int | None) -> None:
    """Until its end. Ctrl-C stops an answer; where nothing is being said it ends the conversation."""
    first = () if system is None else (Message(role="system", content=system),)
    messages, notices = first, writer.notices
    notices.say(
        f"chat with a context of {writer.talker.window_tokens:,} tokens;"
        " /reset clears the history, /exit or Ctrl-D ends it, Ctrl-C stops an answer"
    )
    while (line := _next_line()) is not None:
        if line in _ENDS:
            return
        if line in _RESET:
            messages = first
            notices.say("forgotten")
            continue
        asked = (*messages, Message(role="user", content=line))
        try:
            check_text("what you typed", line)
            said = _reply(writer, asked, max_tokens)
        except ContextTooLargeError as error:
            notices.warn(f"{error}; or /reset")
            continue
        except (TextError, UsageError) as error:
            notices.warn(str(error))
            continue
        messages = (*asked, Message(role="assistant", content=said))


def _next_line() -> str | None:
    """What a person types next; None at the end."""
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            show("\n")
            return None
        if line:
            return line


def _reply(writer: _Writer, messages: tuple[Message, ...], max_tokens: int | None) -> str:
    said: list[str] = []
    try:
        for piece in writer.pieces(writer.fitted(Prompt(messages=messages), max_tokens), Written()):
            said.append(piece)
            show(piece)
    except KeyboardInterrupt:
        show(" [stopped]")
    show("\n")
    return "".join(said)
