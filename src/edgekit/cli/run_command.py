"""`edgekit run MODEL`: parse, call, print what the model says."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgekit.cli.options import DEFAULT_NEW_TOKENS, ENVIRONMENT, MODEL_FORMS, add_shared
from edgekit.cli.parser import COMMANDS
from edgekit.engines.flags import read_number, whole
from edgekit.errors import UsageError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from edgekit.engines.chat import Sampling


_DESCRIPTION = """\
Runs a model inside the memory that it was predicted to need: checks it first, downloads it only if it fits, and starts
the engine with exactly these settings. The context is sized for the job: prompt, new tokens and 64 more.
Without a prompt it starts a chat.
"""
_EXAMPLES = """
examples:
  edgekit run model.gguf -p "Why is the sky blue?" --max-tokens 200
  edgekit run unsloth/gemma-3-4b-it-GGUF --quant Q4_K_M
  git diff | edgekit run model.gguf --system "Review this change."

engines: llama.cpp (pip install 'edgekit-models[llama]'), or stream, the built-in one (pip install
'edgekit-models[embed]'), which reads weights from disk as it needs them: slow for large models, but in much less
memory than their size (llama, qwen2, qwen3, gemma3)
in a chat: /reset clears the history, /exit or Ctrl-D ends it, Ctrl-C stops an answer

exit codes: 0 done, 2 wrong usage, engine not installed, or refused by it, 3 does not fit or stopped before memory ran
out, 4 not found or no access, 5 unreadable, or the engine died (with its last output), 130 interrupted
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help=COMMANDS["run"],
        usage="edgekit run MODEL [--quant NAME] [-p PROMPT | -f FILE] [-n N] [-c N] [--engine NAME] [options]",
        description=_DESCRIPTION,
        epilog=MODEL_FORMS + _EXAMPLES + "\n" + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="GGUF file, hub id or name")
    parser.add_argument(
        "--json", action="store_true", help="print the answer and its figures as JSON (docs/run.md)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print the answer alone")
    _add_prompt(parser)
    add_sampling_options(parser)
    add_shared(parser, "run")
    parser.add_argument(
        "--budget",
        metavar="SIZE",
        help="memory limit of the whole process, for --engine stream: 512M",
    )
    parser.add_argument(
        "--latency",
        metavar="FOR",
        help="longest wait for cache pages on disk (--resident): text (1.5 s, default) or voice (0.2 s)",
    )
    parser.set_defaults(run=run)


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the prompt")
    one = group.add_mutually_exclusive_group()
    one.add_argument("-p", "--prompt", metavar="TEXT", help="prompt to answer (default: a chat)")
    one.add_argument(
        "-f", "--file", metavar="FILE", help="read the prompt from a file; - is standard input"
    )
    group.add_argument("--system", metavar="TEXT", help="system prompt")
    group.add_argument(
        "--raw",
        action="store_true",
        help="continue the text as it is, without the model's chat template",
    )
    group.add_argument(
        "-n",
        "--max-tokens",
        "--n-predict",
        metavar="N",
        help=f"most new tokens (default {DEFAULT_NEW_TOKENS}; in a chat, until the model ends)",
    )


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer is written as it comes; what is returned is only JSON."""
    from edgekit.cli.input import read_prompt

    sampling = sampling_of(arguments)
    prompt = read_prompt(arguments)
    max_tokens = read_number("--max-tokens", arguments.max_tokens, least=1)
    if prompt is None and arguments.json:
        raise UsageError("--json needs a prompt: -p TEXT or -f FILE")
    from edgekit.cli.launch import answer

    return answer(arguments, prompt, sampling, max_tokens)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number") from None


# field of Sampling: (names, metavar, how it is read, help)
_FLAGS: dict[str, tuple[tuple[str, ...], str, Callable[[str], float], str]] = {
    "temperature": (("--temp", "--temperature"), "T", _number, "temperature; 0 takes the top token (default 0.8)"),
    "top_k": (("--top-k",), "K", whole(), "sample among the K likeliest tokens (default 40; 0: all)"),
    "top_p": (("--top-p",), "P", _number, "sample among tokens of total probability P (default 0.95; 1: all)"),
    "min_p": (("--min-p",), "P", _number, "drop tokens below P times the likeliest (default 0.05; 0: none)"),
    "repeat_penalty": (("--repeat-penalty",), "X", _number, "penalty on repeated tokens (default 1: none)"),
    "repeat_last": (("--repeat-last-n",), "N", whole(), "tokens to look back for repetitions (default 64)"),
    "seed": (("-s", "--seed"), "N", whole(most=2**32 - 2), "random seed; the same seed gives the same answer"),
}  # fmt: skip


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for field, (names, metavar, _, told) in _FLAGS.items():
        group.add_argument(*names, dest=field, metavar=metavar, help=told)


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """UsageError that names the flag."""
    from edgekit.engines.chat import Sampling

    given = {}
    for field, (names, _, read, _) in _FLAGS.items():
        text = getattr(arguments, field)
        if text is None:
            continue
        try:
            given[field] = read(text)
        except UsageError as error:
            raise UsageError(f"{names[-1]}: {error}") from error
    return Sampling(**given)  # type: ignore[arg-type]  # each is read as its field wants it
