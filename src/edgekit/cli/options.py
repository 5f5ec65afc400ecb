"""Flags that several commands share: the network, the machine, the load, the engines."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.engines import either, engine_named, engine_names, lender_of, machine_keys, startable
from edgekit.engines.flags import COMMON, CONTEXT, GIVEN, QUANT, Flag, given_flags, read_number
from edgekit.errors import UsageError
from edgekit.units import parse_tokens

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    Options = argparse.ArgumentParser | _ArgumentGroup


MODEL_FORMS = """\
MODEL is any of
  a file or folder          model.gguf, model-00001-of-00003.gguf, ./folder, config.json
  a Hugging Face id         org/name, org/name:Q4_K_M, org/name@revision, hf.co/org/name
  an address                https://huggingface.co/org/name/blob/main/file.gguf, any .gguf URL
  a model of the catalog    qwen3-8b, qwen3-8b:Q8_0, "Gemma 3 27B" (edgekit catalog list)
  Ollama or LM Studio       llama3.2:1b, a model's folder name
  a shipped sample          sample:gemma-3-27b, sample:qwen3-30b-a3b
"""
ENVIRONMENT = """\
environment: HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE, OLLAMA_MODELS, NO_COLOR,
HTTPS_PROXY, SSL_CERT_FILE, EDGEKIT_CACHE (folder for cached headers), EDGEKIT_OLLAMA_REGISTRY (a mirror of
Ollama's registry) and EDGEKIT_LLAMA_VERSION (the default of --llama-version).
"""


def add_network_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-cache", action="store_true", help="do not read or write the header cache on disk"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=120.0,
        help="time limit for all network requests together (default 120)",
    )
    parser.add_argument("--offline", action="store_true", help="use local files and caches only")


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 86_400:
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds, up to one day (got {text!r})"
        )
    return number


DEVICE_FORMS = """\
--device takes the name of a GPU, Mac, board or phone: "RTX 4090", h100, m3-max-64, phone-8; 2x "RTX 3090" for two
(edgekit hardware --devices lists them). SIZES are binary: 24G, 24 GB and 24GiB are the same.
"""


def add_device_options(parser: argparse.ArgumentParser, *, ram: bool = True) -> None:
    """`ram`: whether the answer depends on the RAM."""
    group = parser.add_argument_group("another machine instead of this one")
    group.add_argument(
        "--device",
        "--gpu",
        metavar="NAME",
        action="append",
        default=[],
        help='GPU, Mac, board or phone by name: "RTX 4090", "2x RTX 3090", m3-max-64; repeat it for several',
    )
    if ram:
        group.add_argument("--ram", metavar="SIZE", help="system RAM of that machine: 32G")
    group.add_argument(
        "--vram", metavar="SIZES", help="memory of each NVIDIA GPU, instead of a name: 24G,24G"
    )


def add_users_option(parser: Options) -> None:
    parser.add_argument(
        "--users", metavar="N", help="number of users at the same time, each with a full context: 4"
    )


def add_min_context_option(parser: Options) -> None:
    parser.add_argument(
        "--min-context",
        metavar="N",
        help="shortest context to accept (default 16k, or the native context if that is shorter)",
    )


def add_job_option(parser: Options) -> None:
    parser.add_argument(
        "--job",
        metavar="P+N",
        help="size the context for a prompt of P tokens and an answer of N: 6000+800",
    )


def add_window_budget_option(parser: Options) -> None:
    parser.add_argument(
        "--window-budget",
        metavar="SIZE",
        help="without -c, the longest context whose KV cache fits in this size: 4G",
    )


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how full the memory may be")
    group.add_argument(
        "--max-use",
        metavar="SHARE",
        help="fail if the model needs more than this share of the usable memory: 85%%",
    )
    group.add_argument(
        "--reserve",
        metavar="SIZE",
        help="memory to leave free on every GPU and in RAM (llama.cpp: 1G, 2G on Windows): 512M, 0",
    )


def add_plan_options(parser: Options) -> None:
    """Options of both `plan` and `recommend`."""
    add_users_option(parser)
    add_min_context_option(parser)
    add_job_option(parser)
    parser.add_argument(
        "--prefer-accurate-kv",
        action="store_true",
        help="without -c, prefer an accurate KV cache to a longer context",
    )
    parser.add_argument(
        "--latency",
        metavar="FOR",
        help="tiers only: longest wait for spilled cache pages, text (1.5 s, default) or voice (0.2 s)",
    )


CHOSEN_CONTEXT = (
    "context in tokens: 8192, 32k, 0 for the native context (default: chosen to fit, from 16k up); "
    "also --ctx, --max-model-len"
)


def add_engine_flags(
    parser: argparse.ArgumentParser,
    *,
    engines: tuple[str, ...] = (),
    several: bool = False,
    context_help: str | None = None,
    engine_help: str | None = None,
    without: frozenset[str] = frozenset(),
    hidden: frozenset[str] = frozenset(),
) -> None:
    """Add --engine and the flags of the engines, all by default.

    `hidden` flags are parsed, so that an error can suggest what to use instead, but --help does not list them.
    """
    engines = engines or engine_names()
    named = either((*engines, "auto", "all") if several else engines)
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help=engine_help or f"{named} (default: by file format; llama.cpp for a name)",
    )
    context = CONTEXT._replace(help=context_help or CONTEXT.help)
    add_flags(parser, COMMON, "every engine", (context, QUANT))
    add_flags_of(parser, engines, without=without, hidden=hidden)


def add_flags_of(
    parser: argparse.ArgumentParser,
    engines: tuple[str, ...],
    *,
    without: frozenset[str],
    hidden: frozenset[str] = frozenset(),
) -> None:
    for engine in engines:
        one = engine_named(engine)
        flags = tuple(
            flag._replace(help=argparse.SUPPRESS) if flag.key in hidden else flag
            for flag in one.flags
            if flag.key not in without and lender_of(flag) not in engines
        )
        add_flags(parser, engine, one.title, flags)


def has_flags(arguments: argparse.Namespace) -> bool:
    return bool(given_flags(arguments)) or arguments.engine is not None


def add_flags(
    parser: argparse.ArgumentParser, engine: str, title: str, flags: Iterable[Flag]
) -> None:
    group = parser.add_argument_group(title)
    for flag in flags:
        group.add_argument(
            *flag.names, dest=GIVEN, action=_Given, engine=engine, flag=flag, help=flag.help,
            metavar=flag.metavar or None, nargs=0 if not flag.metavar else "?" if flag.alone else None,
            const=flag.value, default=argparse.SUPPRESS,
        )  # fmt: skip
        if flag.aliases:
            group.add_argument(
                *flag.aliases, dest=GIVEN, action=_Given, engine=engine, flag=flag,
                help=argparse.SUPPRESS, metavar=flag.metavar, default=argparse.SUPPRESS,
            )  # fmt: skip


class _Given(argparse.Action):
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
        elif before is not None and self._flag.aliases and _plain(before) != _plain(value):
            parser.error(f"{option_string} {value}: {before} was given already")
        given[self._flag.key] = value


def _plain(text: object) -> object:
    """4k and 4096 are the same."""
    try:
        return parse_tokens(str(text))
    except UsageError:
        return text


DEFAULT_NEW_TOKENS = 512  # in the answer to one prompt
# Flags that run and serve have for all engines, or set themselves.
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


def add_start_options(parser: argparse.ArgumentParser, verb: str) -> None:
    """Options of both `run` and `serve`: the engine, its flags, the context, and what happens before it starts."""
    engines = [engine.name for engine in startable(verb)]
    parser.add_argument(
        "--engine", metavar="NAME", help=f"{' or '.join(engines)} (default {engines[0]})"
    )
    group = parser.add_argument_group("the context")
    group.add_argument(
        "--sinks", metavar="N", help="first tokens that a rolling context never drops (default 0)"
    )
    group.add_argument(
        "--rolling",
        "--context-shift",
        action="store_true",
        help="drop the oldest tokens of a full context and continue",
    )
    add_min_context_option(group)
    add_window_budget_option(group)
    add_limit_options(parser)
    group = parser.add_argument_group("before it starts")
    group.add_argument(
        "--download-up-to",
        metavar="SIZE",
        help="largest download to make (default: anything that fits)",
    )
    group.add_argument("--no-download", action="store_true", help="never download")
    group.add_argument(
        "-y", "--yes", action="store_true", help="download a model of the catalog without asking"
    )
    group.add_argument("-t", "--threads", metavar="N", help="CPU threads (default: one per core)")
    group.add_argument(
        "--force",
        action="store_true",
        help="start even if the model does not fit (it may swap, or be killed)",
    )
    add_network_options(parser)
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=_CONTEXT), QUANT))
    add_flags_of(parser, tuple(engines), without=machine_keys() | SHARED)


_WHOLE = re.compile(r"-?[0-9]{1,18}")


def read_host(text: str) -> str:
    """The host without the brackets that an IPv6 address has in a URL."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def read_plain(flag: str, text: str | None, *, least: int = 0, most: int = 2**31 - 1) -> int | None:
    """Like read_number, but rejects units: 32k is not a port."""
    if text is not None and _WHOLE.fullmatch(text) is None:
        raise UsageError(f"{flag}: {text[:40]!r} is not a whole number from {least} to {most:,}")
    return read_number(flag, text, least=least, most=most)
