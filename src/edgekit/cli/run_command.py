"""`edgekit run MODEL`: parse, call, print what the model says."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.generation_options import add_sampling_options, sampling_of
from edgekit.cli.parser import COMMANDS
from edgekit.cli.prompts import read_prompt
from edgekit.cli.reach_options import ENVIRONMENT, MODEL_FORMS
from edgekit.cli.run_options import DEFAULT_NEW_TOKENS, add_shared
from edgekit.engines.flags import read_number
from edgekit.errors import UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

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
    sampling = sampling_of(arguments)
    prompt = read_prompt(arguments)
    max_tokens = read_number("--max-tokens", arguments.max_tokens, least=1)
    if prompt is None and arguments.json:
        raise UsageError("--json needs a prompt: -p TEXT or -f FILE")
    from edgekit.cli.answering import answer

    return answer(arguments, prompt, sampling, max_tokens)
