"""A request and a prompt -> an answer, written as it comes; or a conversation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from edgekit.cli.output import NobodyReadsError, show
from edgekit.cli.prompts import check_text
from edgekit.cli.reach_options import reach_of
from edgekit.cli.run_requests import StderrNotices, download_limit, read_order, refusal
from edgekit.engines.chat import Fitted, Message, Prompt, Talker, Written, fit_prompt
from edgekit.errors import ContextTooLargeError, TextError, UsageError
from edgekit.running import AnswerRequest, DoesNotFitError, Judged, RunRequest, answering, fetch

if TYPE_CHECKING:
    from edgekit.engines.program import Up
    from edgekit.engines.sampling import Sampling

_ENDS = frozenset({"/exit", "/quit", "/bye"})
_RESET = frozenset({"/reset", "/clear"})


def answer(arguments: argparse.Namespace, wanted: AnswerRequest) -> tuple[str, int]:
    order = read_order(arguments, "run")
    notices = StderrNotices(quiet=arguments.quiet or arguments.json)
    try:
        with reach_of(arguments, quiet=notices.quiet) as reach:
            # Before the prompt is counted, only what cannot hold any prompt is refused.
            job = wanted.job(prompt_tokens=1)
            judged, weights = fetch(order, reach, download_limit(arguments), notices, job=job)
        with answering(judged, weights, wanted, notices) as (up, judged):
            if wanted.prompt is None:
                _converse(up.talker, judged.order, wanted, notices)
                return "", 0
            return _answer_once(up, judged, wanted, arguments, notices), 0
    except DoesNotFitError as error:
        return refusal(error, as_json=arguments.json)
    except NobodyReadsError:
        return "", 0


# --- one question


def _answer_once(
    up: Up,
    judged: Judged,
    wanted: AnswerRequest,
    arguments: argparse.Namespace,
    notices: StderrNotices,
) -> str:
    assert wanted.prompt is not None  # noqa: S101 - else it is a conversation
    talker = up.talker
    fitted = _fitted(talker, judged.order, talker.tokens(wanted.prompt), wanted.new_tokens)
    if fitted.note:
        notices.say(fitted.note)
    written, pieces = Written(), []
    for piece in _pieces(talker, fitted, wanted.sampling, written):
        pieces.append(piece)
        if not arguments.json:
            show(piece)
    if arguments.json:
        from edgekit.report.as_json import json_text
        from edgekit.report.run_json import answer_json

        return json_text(answer_json(judged.check, "".join(pieces), written, rows=up.rows))
    if pieces and not pieces[-1].endswith("\n"):
        show("\n")
    from edgekit.report.run_text import written_text

    notices.say(written_text(written, asked=wanted.new_tokens))
    return ""


def _fitted(
    talker: Talker, order: RunRequest, tokens: Sequence[int], new_tokens: int | None
) -> Fitted:
    if talker.reads_beyond:
        return Fitted(tokens=tuple(tokens), max_tokens=new_tokens)
    return fit_prompt(
        tokens,
        window_tokens=talker.window_tokens,
        max_tokens=new_tokens,
        sinks=order.sinks,
        rolling=order.rolling,
    )


def _pieces(talker: Talker, fitted: Fitted, sampling: Sampling, written: Written) -> Iterator[str]:
    with closing(
        talker.write(fitted.tokens, sampling, max_tokens=fitted.max_tokens, into=written)  # type: ignore[type-var]  # both are generators
    ) as pieces:
        yield from pieces


# --- a conversation


def _converse(
    talker: Talker, order: RunRequest, wanted: AnswerRequest, notices: StderrNotices
) -> None:
    """Until its end. Ctrl-C stops an answer; where nothing is being said it ends the conversation."""
    first = () if wanted.system is None else (Message(role="system", content=wanted.system),)
    messages = first
    notices.say(
        f"chat with a context of {talker.window_tokens:,} tokens;"
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
            said = _reply(talker, order, asked, wanted)
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


def _reply(
    talker: Talker, order: RunRequest, messages: tuple[Message, ...], wanted: AnswerRequest
) -> str:
    said: list[str] = []
    try:
        tokens = talker.tokens(Prompt(messages=messages))
        fitted = _fitted(talker, order, tokens, wanted.max_tokens)
        for piece in _pieces(talker, fitted, wanted.sampling, Written()):
            said.append(piece)
            show(piece)
    except KeyboardInterrupt:
        show(" [stopped]")
    show("\n")
    return "".join(said)
