"""The grammar of the command line. Nothing heavy is imported here: --help must be instant."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from edgekit import __version__
from edgekit.errors import printable

if TYPE_CHECKING:
    from argparse import _SubParsersAction

Commands: TypeAlias = "_SubParsersAction[argparse.ArgumentParser]"

# Commands in the order of --help, with their summaries. add_NAME in commands.py declares the flags of a command, and
# which function runs it: MODULE:FUNCTION of this package, imported when the command runs.
COMMANDS = {
    "recommend": "the best models for this machine, or for another",
    "search": "the models of the index that match: by name, licence, size, quality, and whether they fit",
    "plan": "how to run it: every setting chosen, with reasons and commands",
    "check": "will it fit on this machine, or on another?",
    "share": "the answer of check as a web page, a picture or a badge to send to a friend",
    "together": "which models fit in memory at the same time, and with which contexts",
    "inspect": "what a model is, from its header alone",
    "estimate": "the memory an engine will allocate, and how each number is known",
    "compare": "models, or the engines for one model, side by side",
    "verify": "compare the prediction with the real llama.cpp on this machine",
    "run": "run it inside the memory it was predicted to need",
    "conversations": "the conversations that run has saved: list, show, delete",
    "serve": "serve it over an OpenAI-compatible API inside the memory it was predicted to need",
    "download": "download a model: its repository chosen, the free disk space checked first",
    "web": "open the web page with the REST API: see what fits before you download",
    "embed": "compute embeddings of texts within a memory budget",
    "hardware": "what this machine has, and what each engine may use of it",
    "calibrate": "measure this machine with the real llama.cpp, and save the results",
    "index": "the models EdgeKit knows, with the source of every fact: list, show, add, update, build",
}
ALIASES = {"catalog": "index"}  # the names that commands had before; --help does not list them

_EXAMPLES = """\
examples:
  edgekit recommend
  edgekit check "Gemma 3 27B" --quant Q4_K_M --device "RTX 4090"
  edgekit plan qwen3-30b-a3b --device "RTX 4090" --ram 64G

exit codes: 0 done, 1 a prediction outside its bounds (verify), tight (check --strict) or output that cannot be written,
2 wrong usage or refused by the engine, 3 does not fit (check, plan, recommend, search, run, serve, embed), 4 not found,
no access or no network, 5 unreadable or unsupported
"""


class UsageExit(SystemExit):
    """An invalid command line. Carries the message, so that --json can report it too."""

    def __init__(self, message: str, *, in_one_line: bool) -> None:
        super().__init__(2)
        self.message, self.in_one_line = message, in_one_line


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the terminal; indented lines (examples, tables) stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        import textwrap

        lines: list[str] = []
        for block in re.split(r"\n(?=\s|[a-z ]+:)", text):
            is_plain = block[:1].isspace() or not block
            lines += block.splitlines() or [""] if is_plain else textwrap.wrap(block, width)
        return "".join(f"{indent}{line}\n" for line in lines)


class Parser(argparse.ArgumentParser):
    """Suggests similar flags and commands in error messages, below the usage line."""

    commands: dict[
        str, Parser
    ]  # command -> its parser; only the parser of the whole command line has it

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"formatter_class": _HelpFormatter})
        self._negative_number_matcher = re.compile(r"-\.?\d")  # -1G is a value, not a flag
        self.set_defaults(parser=self)  # the parser of the innermost command sets it last

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(printable(f"{self.prog}: error: {message}"), file=sys.stderr)
        raise UsageExit(message, in_one_line=bool(self.get_default("json_lines")))

    def reject(self, words: Sequence[str]) -> NoReturn:
        """Report words that the command does not know."""
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not flags and self.prog.endswith(" recommend"):
            self.error(f"recommend takes no model; try: edgekit plan {' '.join(words)}")
        if not flags:
            self.error(f"unexpected argument: {' '.join(words)}")
        commands = [
            name for name, parser in build_parser().commands.items() if flags[0] in parser.flags
        ]
        if commands:
            command = self.prog.partition(" ")[2]
            self.error(f"{command} has no flag {flags[0]}; it is a flag of {', '.join(commands)}")
        self.error(f"unknown flag {flags[0]}{_near(flags[0], self.flags)}")

    @property
    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        kind = action.option_strings[-1] if action.option_strings else str(action.metavar).lower()
        choices = [str(choice) for choice in action.choices]
        hint = _near(str(value), choices) or f"; choose one of {', '.join(choices)}"
        raise argparse.ArgumentError(None, f"unknown {kind} {str(value)[:60]!r}{hint}")


def _near(word: str, names: Iterable[str]) -> str:
    """'. Did you mean: --device?', or '' if nothing is similar."""
    from difflib import get_close_matches  # only a mistake needs it

    plain = {name.lstrip("-"): name for name in names}
    similar = [plain[name] for name in get_close_matches(word.lstrip("-")[:60], plain)]
    return f". Did you mean: {', '.join(similar)}?" if similar else ""


def build_parser(word: str | None = None) -> Parser:
    """The parser of all commands, or only of the one that `word` names, which takes a fraction of the time.

    For `edgekit --help` the commands get no flags, because it does not show them.
    """
    word = ALIASES.get(word or "", word)
    parser = Parser(
        prog="edgekit",
        usage="edgekit COMMAND ... (edgekit help COMMAND explains one)",
        description="Will this model run on my machine, and how? EdgeKit reads a model's header, never its weights, "
        "and tells you before you download.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"edgekit {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, prog="edgekit"
    )
    for name, line in COMMANDS.items():
        if word in {"-h", "--help"}:
            commands.add_parser(name, help=line)
        elif word == name or word not in COMMANDS:
            declarations = import_module("edgekit.cli.commands")
            getattr(declarations, f"add_{name}")(commands)
    parser.commands = dict(commands.choices)
    return parser
