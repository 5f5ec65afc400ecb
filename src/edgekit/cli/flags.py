"""How flags are declared, and the flags that several commands share. Imports nothing heavy: --help must be instant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from edgekit.cli.parser import ALIASES, COMMANDS, Commands
from edgekit.engines import either, engine_named, engine_names, lender_of
from edgekit.engines.flags import COMMON, CONTEXT, GIVEN, QUANT, Flag, read_number
from edgekit.errors import UsageError
from edgekit.units import parse_tokens

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    Options = argparse.ArgumentParser | _ArgumentGroup

# The arguments of a command as --help shows them, with their help; see add_options.
Rows: TypeAlias = "Mapping[str, str | Rows]"

MODEL_FORMS = """\
MODEL is any of
  a file or folder          model.gguf, model-00001-of-00003.gguf, ./folder, config.json
  a Hugging Face id         org/name, org/name:Q4_K_M, org/name@revision, hf.co/org/name
  an address                https://huggingface.co/org/name/blob/main/file.gguf, any .gguf URL
  a model of the index      qwen3-8b, qwen3-8b:Q8_0, "Gemma 3 27B" (edgekit index list)
  Ollama or LM Studio       llama3.2:1b, a model's folder name
  a shipped sample          sample:gemma-3-27b, sample:qwen3-30b-a3b
"""
DEVICE_FORMS = """\
--device takes the name of a GPU, Mac, board or phone: "RTX 4090", h100, m3-max-64, phone-8; 2x "RTX 3090" for two
(edgekit hardware --devices lists them). --cpu and --ram "32G DDR5-6000" tell how fast the CPU and RAM are.
SIZES are binary: 24G, 24 GB and 24GiB are the same.
"""
ENVIRONMENT = """\
environment: HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE, OLLAMA_MODELS, NO_COLOR,
HTTPS_PROXY, SSL_CERT_FILE, EDGEKIT_CACHE (folder for cached headers), EDGEKIT_OLLAMA_REGISTRY (a mirror of
Ollama's registry) and EDGEKIT_LLAMA_VERSION (the default of --llama-version).
"""
CHOSEN_CONTEXT = (
    "context in tokens: 8192, 32k, 0 for the native context (default: chosen to fit, from 16k up); "
    "also --ctx, --max-model-len"
)
ANY_MODEL = "file, folder, hub id, URL or name"
NETWORK_TIMEOUT_S = 120.0
DEFAULT_NEW_TOKENS = 512  # most tokens of the answer to one prompt
SERVE_PORT = 8080
ONE_OF = "one of"  # instead of a title: the flags of this group exclude each other
_WHOLE = re.compile(r"-?[0-9]{1,18}")

JSON = {"--json": "print JSON (docs/json.md)"}
MODELS = {"MODEL...": f"{ANY_MODEL}; - reads names from standard input"}
PROGRAM = {
    "--for PROGRAM": "print only the command or settings for this program: llama-server, ollama, lm-studio ..."
}
ASK_ENGINE = {
    "--ask-engine": "take the memory from a dry run of the llama.cpp on this machine, which allocates nothing"
}
USERS = {"--users N": "number of users at the same time, each with a full context: 4"}
MIN_CONTEXT = {
    "--min-context N": "shortest context to accept (default 16k, or the native context if that is shorter)"
}
MIN_SPEED = {
    "--min-speed TOKENS_PER_S": "slowest typical speed to accept, in tokens per second: 20"
}
PROMPT = {
    "--prompt N": "prompt for which --why gives the time to the first word, in tokens (default 1000)"
}
ACCEPTANCE = {
    "--acceptance RATE": "share of the draft model's tokens that are accepted, to show the speed with it: 70%%"
}
JOB = {"--job P+N": "size the context for a prompt of P tokens and an answer of N: 6000+800"}
WINDOW_BUDGET = {
    "--window-budget SIZE": "without -c, the longest context whose KV cache fits in this size: 4G"
}
PLAN = {
    **USERS,
    **MIN_CONTEXT,
    **MIN_SPEED,
    **JOB,
    "--prefer-accurate-kv": "without -c, prefer an accurate KV cache to a longer context",
    "--latency FOR": "tiers only: longest wait for spilled cache pages, text (1.5 s, default) or voice (0.2 s)",
}
NO_CACHE = {"--no-cache": "do not read or write the header cache on disk"}
OFFLINE = {"--offline": "use local files and caches only"}
NETWORK = {
    **NO_CACHE,
    "--timeout SECONDS": f"time limit for all network requests together (default {NETWORK_TIMEOUT_S:g})",
    **OFFLINE,
}
DOWNLOADS: Rows = {
    "hub models that must be downloaded to be inspected": {
        "--download-up-to SIZE": "largest download to make without asking (default 512M)",
        "--no-download": "never download, not even to inspect a model",
    },
}
_DEVICE = {
    "--device, --gpu NAME...": 'GPU, Mac, board or phone by name: "RTX 4090", "2x RTX 3090", m3-max-64; repeat it for '
    "several"
}
_RAM = {
    "--ram SIZE": 'system RAM of that machine, with its speed if known: 32G, "32G DDR5-6000", "8x32G DDR4-3200"'
}
_VRAM = {"--vram SIZES": "memory of each NVIDIA GPU, instead of a name: 24G,24G"}
_CPU = {"--cpu NAME": 'processor of that machine: "Ryzen 7 7700", i7-12700K, "EPYC 9654"'}
DEVICES: Rows = {"another machine instead of this one": {**_DEVICE, **_RAM, **_VRAM, **_CPU}}
DEVICES_WITHOUT_RAM: Rows = {"another machine instead of this one": {**_DEVICE, **_VRAM}}
LIMITS: Rows = {
    "how full the memory may be": {
        "--max-use SHARE": "fail if the model needs more than this share of the usable memory: 85%%",
        "--reserve SIZE": "memory to leave free on every GPU and in RAM (llama.cpp: 1G, 2G on Windows): 512M, 0",
    },
}


def add_command(
    commands: Commands,
    name: str,
    *,
    run: str = "",
    usage: str | None = None,
    description: str,
    epilog: str,
    options: Rows,
    **defaults: object,
) -> argparse.ArgumentParser:
    """The parser of one command. `run` is the function to call with the arguments, as MODULE:FUNCTION."""
    parser = commands.add_parser(
        name,
        aliases=[alias for alias, command in ALIASES.items() if command == name],
        help=COMMANDS[name],
        usage=usage,
        description=description,
        epilog=epilog,
        allow_abbrev=False,
    )
    add_options(parser, options)
    parser.set_defaults(run=run, **defaults)
    return parser


def add_options(parser: Options, rows: Rows) -> None:
    """Add arguments written as --help shows them: {"-f, --file FILE": help, "title of a group": {"--json": help}}.

    A flag without a value is a switch; one with `NAME...` may be repeated; SECONDS are parsed. `MODEL` is a positional
    argument: `[MODEL]` may be left out, `MODEL...` takes several, and `[MODEL...]` any number. Flags in a group named
    ONE_OF exclude each other.
    """
    for row, content in rows.items():
        if not isinstance(content, str):
            if row == ONE_OF:
                add_options(parser.add_mutually_exclusive_group(), content)
            else:
                add_options(parser.add_argument_group(row), content)
            continue
        if not row.startswith("-"):
            word = row.strip("[.]")
            if word_count := {"...": "+", "..]": "*"}.get(row[-3:]):
                parser.add_argument(
                    f"{word.lower()}s", metavar=word, nargs=word_count, default=[], help=content
                )
            else:
                count = "?" if row.startswith("[") else None
                parser.add_argument(word.lower(), metavar=word, nargs=count, help=content)
            continue
        *names, last = row.split(", ")
        name, _, metavar = last.partition(" ")
        options: dict[str, Any] = {"action": "store_true"}
        if metavar.endswith("..."):
            options = {"metavar": metavar[:-3], "action": "append", "default": []}
        elif metavar:
            options = {"metavar": metavar, "type": _seconds if metavar == "SECONDS" else str}
        if name == "--for":  # `arguments.for` would be a syntax error
            options["dest"] = "program"
        if row == "--prompt N":  # `run` has a --prompt that is a text
            options["dest"] = "prompt_tokens"
        parser.add_argument(*names, name, help=content, **options)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 86_400:
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds, up to one day (got {text!r})"
        )
    return number


def engine_row(engines: tuple[str, ...]) -> Rows:
    """The flag --engine with these choices."""
    return {"--engine NAME": f"{either(engines)} (default: by file format; llama.cpp for a name)"}


def several_engines() -> tuple[str, ...]:
    """What --engine may be where the answer may be about several engines."""
    return (*engine_names(), "auto", "all")


def add_engine_flags(
    parser: argparse.ArgumentParser,
    engines: tuple[str, ...],
    *,
    without: frozenset[str],
    hidden: frozenset[str] = frozenset(),
    own: frozenset[str] = frozenset(),
    context_help: str = CONTEXT.help,
) -> None:
    """Add the flags that every engine has, and a group with the other flags of each of these engines.

    `own` are flags of the command, which engines use for something else: vLLM's -q is --quantization.
    `hidden` flags are parsed, so that an error can suggest what to use instead, but --help does not list them.
    """
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=context_help), QUANT))
    for name in engines:
        engine = engine_named(name)
        flags = tuple(
            flag._replace(
                names=tuple(name for name in flag.names if name not in own),
                help=argparse.SUPPRESS if flag.key in hidden else flag.help,
            )
            for flag in engine.flags
            if flag.key not in without and lender_of(flag) not in engines
        )
        add_flags(parser, name, engine.title, flags)


def add_flags(
    parser: argparse.ArgumentParser, engine: str, title: str, flags: Iterable[Flag]
) -> None:
    """Add a group with the flags of one engine to --help. Aliases are parsed but not shown."""
    group = parser.add_argument_group(title)
    for flag in flags:
        value_count: str | int | None = 0  # a switch
        if flag.metavar:
            value_count = "?" if flag.alone else None
        group.add_argument(
            *flag.names, dest=GIVEN, action=_StoreFlag, engine=engine, flag=flag, help=flag.help,
            metavar=flag.metavar or None, nargs=value_count, const=flag.value, default=argparse.SUPPRESS,
        )  # fmt: skip
        if flag.aliases:
            group.add_argument(
                *flag.aliases, dest=GIVEN, action=_StoreFlag, engine=engine, flag=flag,
                help=argparse.SUPPRESS, metavar=flag.metavar, default=argparse.SUPPRESS,
            )  # fmt: skip


class _StoreFlag(argparse.Action):
    """Stores a flag under its engine and its key; `given_flags` returns them all."""

    def __init__(self, *words: Any, engine: str, flag: Flag, **options: Any) -> None:
        super().__init__(*words, **options)
        self._engine, self._flag = engine, flag

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if not hasattr(namespace, GIVEN):
            setattr(namespace, GIVEN, {})
        given: dict[str, Any] = getattr(namespace, GIVEN).setdefault(self._engine, {})
        value: Any = values if self._flag.metavar else self._flag.value
        before = given.get(self._flag.key)
        if before is not None and self._flag.repeats:
            value = f"{before},{value}"
        elif before is not None and self._flag.aliases and _number(before) != _number(value):
            parser.error(f"{option_string} {value}: {before} was given already")
        given[self._flag.key] = value


def _number(text: object) -> object:
    """The number of tokens, so that 4k equals 4096; the text itself if it is not a number."""
    try:
        return parse_tokens(str(text))
    except UsageError:
        return text


def read_integer(
    flag: str, text: str | None, *, least: int = 0, most: int = 2**31 - 1
) -> int | None:
    """Like read_number, but rejects units: 32k is not a port."""
    if text is not None and _WHOLE.fullmatch(text) is None:
        raise UsageError(f"{flag}: {text[:40]!r} is not a whole number from {least} to {most:,}")
    return read_number(flag, text, least=least, most=most)


def read_host(text: str) -> str:
    """The host without the brackets that an IPv6 address has in a URL. Raises UsageError for a host with a port."""
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.endswith("]")):
        raise UsageError(f"--host {text} has a port: write --host {host} --port {port}")
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text
