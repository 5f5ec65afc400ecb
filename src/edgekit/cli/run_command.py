"""`edgekit run MODEL`: parse, call, print what the model says."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.engine_flags import add_flags, add_flags_of
from edgekit.cli.generation_options import add_sampling_options, sampling_of
from edgekit.cli.reach_options import ENVIRONMENT, MODEL_FORMS, add_reach_options
from edgekit.cli.run_options import DEFAULT_NEW_TOKENS, add_run_options
from edgekit.engines.common_flags import CONTEXT, OF_THE_MACHINE, QUANT
from edgekit.engines.flags import COMMON, read_number
from edgekit.errors import SourceError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.engines.chat import Prompt

MOST_PROMPT_BYTES = 64 * 2**20
# What run has for both engines, or settles itself.
SHARED = frozenset(
    {
        "ctx_shift",
        "sinks",
        "rolling",
        "threads",
        "max_tokens",
        "mode",
        "mix",
        "embeddings",
        "llama_version",
    }
)

_CONTEXT = "context in tokens: 8192, 32k, 0 for the native context (default: what the job needs)"

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
        help="run it inside the memory it was predicted to need",
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
    add_shared(parser, "llama.cpp", "stream")
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


def add_shared(parser: argparse.ArgumentParser, *engines: str) -> None:
    """What `serve` has too: the window, the engine and its flags."""
    parser.add_argument(
        "--engine", metavar="NAME", help=f"{' or '.join(engines)} (default {engines[0]})"
    )
    add_run_options(parser)
    add_reach_options(parser)
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=_CONTEXT), QUANT))
    add_flags_of(parser, engines, without=OF_THE_MACHINE | SHARED)


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
    from edgekit.cli.answering import AnswerRequest, answer

    wanted = AnswerRequest(
        prompt=prompt, system=arguments.system, sampling=sampling, max_tokens=max_tokens
    )
    return answer(arguments, wanted)


def read_prompt(arguments: argparse.Namespace) -> Prompt | None:
    """None: a conversation. UsageError or SourceError for what cannot be read."""
    text = arguments.prompt
    if arguments.file is not None:
        text = _from_file(arguments.file)
    elif text is None and not _is_person():
        text = _from_file("-")
    if text is None:
        if arguments.raw:
            raise UsageError("--raw needs a prompt: -p TEXT or -f FILE")
        return None
    if not text.strip():
        raise UsageError("the prompt is empty")
    check_text("the prompt", text)
    check_text("--system", arguments.system or "")
    from edgekit.engines.chat import Message, Prompt

    if arguments.raw:
        if arguments.system is not None:
            raise UsageError("--system is part of the chat template, which --raw leaves out")
        return Prompt(text=text)
    before = () if arguments.system is None else (Message(role="system", content=arguments.system),)
    return Prompt(messages=(*before, Message(role="user", content=text)))


def check_text(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what}: character {error.start:,} is not valid Unicode (UTF-8)"
        ) from error


def _is_person() -> bool:
    return bool(getattr(sys.stdin, "isatty", lambda: False)())


def _from_file(name: str) -> str:
    try:
        if name == "-":
            raw = b"" if sys.stdin is None else sys.stdin.buffer.read(MOST_PROMPT_BYTES + 1)
        else:
            with open(name, "rb") as file:  # noqa: PTH123 - pathlib costs what --help takes
                raw = file.read(MOST_PROMPT_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror or error}") from error
    if len(raw) > MOST_PROMPT_BYTES:
        raise UsageError(f"{name}: the prompt is larger than {MOST_PROMPT_BYTES // 2**20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: byte {error.start:,} is not UTF-8 text") from error
