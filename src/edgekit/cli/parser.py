"""The grammar of the command line. Nothing heavy is imported here: --help must be instant."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from edgekit import __version__
from edgekit.cli import (
    calibrate_command,
    catalog_command,
    check_command,
    compare_command,
    embed_command,
    estimate_command,
    hardware_command,
    inspect_command,
    plan_command,
    recommend_command,
    run_command,
    serve_command,
    verify_command,
    web_command,
)

_COMMANDS = {  # in the order of --help
    "recommend": recommend_command,
    "plan": plan_command,
    "check": check_command,
    "inspect": inspect_command,
    "estimate": estimate_command,
    "compare": compare_command,
    "verify": verify_command,
    "run": run_command,
    "serve": serve_command,
    "web": web_command,
    "embed": embed_command,
    "hardware": hardware_command,
    "calibrate": calibrate_command,
    "catalog": catalog_command,
}

_EXAMPLES = """\
examples:
  edgekit recommend
  edgekit plan qwen3-30b-a3b --device "RTX 4090" --ram 64G
  edgekit check model.gguf -c 32k
  edgekit check Qwen/Qwen3-8B --engine all --device "RTX 4090"
  edgekit hardware
  edgekit calibrate
  edgekit catalog list --kind code
  edgekit inspect model.gguf
  edgekit inspect bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  edgekit inspect mlx-community/Qwen3-8B-4bit --json
  edgekit inspect sample:gemma-3-27b --layers
  edgekit estimate model.gguf -c 32k -ngl all -ctk q8_0 -ctv q8_0
  edgekit estimate Qwen/Qwen3-8B --engine vllm --max-model-len 32k --gpu "RTX 4090"
  edgekit compare mlx-community/Qwen3-8B-4bit -c 16k
  edgekit verify model.gguf -c 32k
  edgekit run model.gguf -p "Why is the sky blue?" --max-tokens 200
  edgekit serve model.gguf --port 8080
  edgekit web
  edgekit embed model.gguf --input texts.txt --output vectors.npy --budget 200M

exit codes: 0 done, 1 a prediction outside its bounds (verify), tight (check --strict) or an output that cannot be
written, 2 usage or refused by the engine, 3 does not fit (check, plan, recommend, run,
serve, embed), 4 not found, no access or
no network, 5 unreadable or unsupported
"""


class WrongWords(SystemExit):
    """The end, as argparse has it, with what it said: whoever asked for JSON is told in JSON too."""

    def __init__(self, message: str, *, in_one_line: bool) -> None:
        super().__init__(2)
        self.message, self.in_one_line = message, in_one_line


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        wrong_words(self, message, in_one_line=bool(self.get_default("json_lines")))


def wrong_words(parser: argparse.ArgumentParser, message: str, *, in_one_line: bool) -> NoReturn:
    """Usage and message on standard error, as argparse has them."""
    from edgekit.report.lines import printable

    parser.print_usage(sys.stderr)
    told = printable(f"{parser.prog}: error: {message}")
    print(told, file=sys.stderr)
    raise WrongWords(message, in_one_line=in_one_line)


def build_parser(word: str | None = None) -> argparse.ArgumentParser:
    """Of all commands, or only of the one that `word` names: that takes a fraction of the time."""
    parser: argparse.ArgumentParser = _Parser(
        prog="edgekit",
        description="Will this model run on my machine, and how? EdgeKit reads a model's header, "
        "never its weights, and tells before you download.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"edgekit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in _COMMANDS.items():
        if word not in _COMMANDS or word == name:
            command.add_to(commands)
    return parser
