"""Flags and help of the commands that answer questions, and the flags that several commands share.

Nothing heavy is imported here: --help must be instant.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.cli.parser import Commands, add_command
from edgekit.engines import (
    default_engine,
    either,
    engine_named,
    engine_names,
    every_engine,
    lender_of,
    machine_keys,
    planned_engines,
)
from edgekit.engines.flags import COMMON, CONTEXT, GIVEN, QUANT, Flag
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
DEVICE_FORMS = """\
--device takes the name of a GPU, Mac, board or phone: "RTX 4090", h100, m3-max-64, phone-8; 2x "RTX 3090" for two
(edgekit hardware --devices lists them). SIZES are binary: 24G, 24 GB and 24GiB are the same.
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
JSON = {"--json": "print JSON (docs/json.md)"}
PROGRAM = {
    "--for PROGRAM": "print only the command or settings for this program: llama-server, ollama, lm-studio ..."
}
NO_CACHE = {"--no-cache": "do not read or write the header cache on disk"}
OFFLINE = {"--offline": "use local files and caches only"}
ANY_MODEL = "file, folder, hub id, URL or name"

# Shared flags, as --help shows them.
USERS = {"--users N": "number of users at the same time, each with a full context: 4"}
MIN_CONTEXT = {
    "--min-context N": "shortest context to accept (default 16k, or the native context if that is shorter)"
}
JOB = {"--job P+N": "size the context for a prompt of P tokens and an answer of N: 6000+800"}
WINDOW_BUDGET = {
    "--window-budget SIZE": "without -c, the longest context whose KV cache fits in this size: 4G"
}
PLAN = {
    **USERS,
    **MIN_CONTEXT,
    **JOB,
    "--prefer-accurate-kv": "without -c, prefer an accurate KV cache to a longer context",
    "--latency FOR": "tiers only: longest wait for spilled cache pages, text (1.5 s, default) or voice (0.2 s)",
}


def add_options(parser: Options, rows: Mapping[str, str]) -> None:
    """Add flags written as --help shows them: {"-f, --file FILE": help}.

    A flag without a value is a switch; with `NAME...` it may be repeated; SECONDS are parsed.
    """
    for row, text in rows.items():
        *names, last = row.split(", ")
        name, _, metavar = last.partition(" ")
        options: dict[str, Any] = {"action": "store_true"}
        if metavar.endswith("..."):
            options = {"metavar": metavar[:-3], "action": "append", "default": []}
        elif metavar:
            options = {"metavar": metavar, "type": _seconds if metavar == "SECONDS" else str}
        if name == "--for":  # a keyword of Python
            options["dest"] = "program"
        parser.add_argument(*names, name, help=text, **options)


def add_models(parser: argparse.ArgumentParser) -> None:
    text = f"{ANY_MODEL}; - reads names from standard input"
    parser.add_argument("models", metavar="MODEL", nargs="+", help=text)


def add_network_options(parser: argparse.ArgumentParser) -> None:
    timeout = "time limit for all network requests together (default 120)"
    add_options(parser, {**NO_CACHE, "--timeout SECONDS": timeout, **OFFLINE})
    parser.set_defaults(timeout=120.0)


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


def add_download_options(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser.add_argument_group("hub models that must be downloaded to be inspected"),
        {
            "--download-up-to SIZE": "largest download to make without asking (default 512M)",
            "--no-download": "never download, not even to inspect a model",
        },
    )


def add_device_options(parser: argparse.ArgumentParser, *, ram: bool = True) -> None:
    """`ram`: whether the answer depends on the RAM."""
    name = 'GPU, Mac, board or phone by name: "RTX 4090", "2x RTX 3090", m3-max-64; repeat it for several'
    add_options(
        parser.add_argument_group("another machine instead of this one"),
        {
            "--device, --gpu NAME...": name,
            **({"--ram SIZE": "system RAM of that machine: 32G"} if ram else {}),
            "--vram SIZES": "memory of each NVIDIA GPU, instead of a name: 24G,24G",
        },
    )


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser.add_argument_group("how full the memory may be"),
        {
            "--max-use SHARE": "fail if the model needs more than this share of the usable memory: 85%%",
            "--reserve SIZE": "memory to leave free on every GPU and in RAM (llama.cpp: 1G, 2G on Windows): 512M, 0",
        },
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
    names = either((*engines, "auto", "all") if several else engines)
    engine_help = engine_help or f"{names} (default: by file format; llama.cpp for a name)"
    add_options(parser, {"--engine NAME": engine_help})
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
    for name in engines:
        engine = engine_named(name)
        flags = tuple(
            flag._replace(help=argparse.SUPPRESS) if flag.key in hidden else flag
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


_CHECK_EXAMPLES = """
Several models, a folder of models, or - (names on standard input) give a table.

examples:
  edgekit check qwen3-8b --device "RTX 4060"
  edgekit check "Gemma 3 27B" --quant Q8_0 -c 32k --vram 24G,24G --ram 64G
  edgekit check ~/models

exit codes: 0 it loads (1 if it is tight and --strict is given), 3 does not fit or cannot run there, 2 wrong usage or
refused by the engine, 4 not found, no access or no network, 5 unreadable or unsupported. Several models: the worst
code; several engines: the best.
"""


def add_check(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check",
        run="check:run_check",
        usage="edgekit check MODEL ... [--quant NAME] [-c N] [--device NAME] [--engine NAME] [options]",
        description="Will the model fit in the memory of this machine, or of another? Prints the verdict, the "
        "memory it needs next to what is free, the command to run it, and what would change the answer. Reads only "
        "headers, never weights.",
        epilog=MODEL_FORMS + _CHECK_EXAMPLES + ENVIRONMENT,
    )
    add_models(parser)
    add_options(
        parser,
        {
            **JSON,
            "--quiet": "print the headline only",
            "--why": "add the memory breakdown, the reasons and how each figure is known",
            **PROGRAM,
            "--exact": "read the whole header of a remote model, even if its start is enough to answer "
            "(--json always does)",
            "--strict": "exit with code 1 if the model only just fits (tight)",
            **USERS,
            **MIN_CONTEXT,
            **JOB,
            **WINDOW_BUDGET,
        },
    )
    add_download_options(parser)
    add_device_options(parser)
    add_limit_options(parser)
    add_network_options(parser)
    add_engine_flags(parser, several=True, context_help=CHOSEN_CONTEXT, without=machine_keys())


_COMPARE_EXAMPLES = """
examples:
  edgekit compare qwen3-8b -c 32k
  edgekit compare qwen3-8b llama-3.1-8b phi-4 --device "RTX 4090" --ram 64G
  edgekit compare ~/models --json

exit codes: 0 if at least one could be checked, whatever the verdict; otherwise the code of the first
"""


def add_compare(commands: Commands) -> None:
    parser = add_command(
        commands,
        "compare",
        run="check:run_compare",
        usage="edgekit compare MODEL ... [--quant NAME] [-c N] [--device NAME] [--engine NAME] [options]",
        description="One model: what llama.cpp, vLLM and MLX need for the same context, with weights and KV cache "
        "on the GPU. Several models, or a machine: one row each, with a verdict for this machine or the one that is "
        "named.",
        epilog=MODEL_FORMS + DEVICE_FORMS + _COMPARE_EXAMPLES + ENVIRONMENT,
    )
    add_models(parser)
    add_options(parser, {**JSON, **USERS, **MIN_CONTEXT, **JOB})
    add_device_options(parser)
    add_limit_options(parser)
    add_network_options(parser)
    add_engine_flags(
        parser,
        engine_help=f"{either((*engine_names(), 'auto', 'all'))} (default: all for one model, auto for several)",
        context_help="context in tokens: 8192, 32k (default: chosen for the machine, or 32k if none is given)",
        without=machine_keys(),
    )


_PLAN_EXAMPLES = """
examples:
  edgekit plan qwen3-30b-a3b
  edgekit plan gemma-3-27b --device "RTX 4090" --ram 64G -c 32k --why
  edgekit plan qwen3-8b --engine vllm --device h100 --users 8 -c 16k

exit codes: 0 there is a plan, 3 nothing fits or the engine cannot run there, 2 wrong usage, contradicting flags or
refused by the engine, 4 not found, no access or no network, 5 unreadable or unsupported
"""


def add_plan(commands: Commands) -> None:
    parser = add_command(
        commands,
        "plan",
        run="plan:run_plan",
        usage="edgekit plan MODEL [--quant NAME] [-c N] [--users N] [--device NAME] [--engine NAME] [options]",
        description="How to run the model on this machine, or on another: quantisation, context, KV cache, layers "
        "on the GPU, draft model and number of users, each with its reason, and the commands that start it.",
        epilog=MODEL_FORMS + _PLAN_EXAMPLES + ENVIRONMENT,
    )
    parser.add_argument("model", metavar="MODEL", help=ANY_MODEL)
    add_options(
        parser,
        {
            **JSON,
            "--why": "add every decision, what was tried, and how each figure is known",
            **PROGRAM,
            "--plot FILE": "draw memory versus context as .svg or .png (needs 'edgekit-models[plot]')",
            **PLAN,
            "--no-drafter": "do not look for a draft model",
            "--nodes N": "number of machines like this one, joined by Ray (vLLM only)",
        },
    )
    add_download_options(parser)
    add_device_options(parser)
    add_limit_options(parser)
    add_network_options(parser)
    hidden = (flag.key for engine in every_engine() for flag in engine.flags if flag.not_planned)
    add_engine_flags(
        parser,
        engines=planned_engines(),
        hidden=frozenset(hidden),
        context_help=CHOSEN_CONTEXT,
        without=machine_keys(),
    )


_RECOMMEND_EXAMPLES = """
examples:
  edgekit recommend
  edgekit recommend --device "RTX 4090" --ram 64G --users 4 -c 16k
  edgekit recommend --task code --device m4-max-64 --engine mlx

Chooses among the models of the catalog (edgekit catalog list; edgekit catalog add MODEL adds one). Needs no network.
exit codes: 0 something fits, 3 nothing fits or the engine cannot run there, 2 wrong usage
"""


def add_recommend(commands: Commands) -> None:
    parser = add_command(
        commands,
        "recommend",
        run="plan:run_recommend",
        usage="edgekit recommend [--task NAME] [-c N] [--users N] [--device NAME] [--engine NAME] [options]",
        description="Which models run best on this machine, or on another? Lists the best models of the catalog "
        "with quantisation, context, KV cache, expected speed and memory.",
        epilog=_RECOMMEND_EXAMPLES,
    )
    default, others = default_engine().name, either(planned_engines()[1:])
    add_options(
        parser,
        {
            "--task NAME": "what the model is for: chat (default), code, reasoning, vision or embed",
            "--engine NAME": f"engine to run it with: {default} (default), {others}",
            "--limit N": "number of models to show (default 5)",
            "--all-sizes": "allow several models of one family instead of the best of each",
            "--tiers": "choose among the five tiers of the context-scaling memo (docs/tiers.md)",
            **JSON,
            "--why": "add each model's headline, bars, release and licence",
            "--offline": "no effect: recommend never uses the network",
            **PLAN,
        },
    )
    parser.set_defaults(task="chat")
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=CHOSEN_CONTEXT),))
    add_device_options(parser)
    add_limit_options(parser)


_INSPECT_EXAMPLES = """
examples:
  edgekit inspect Qwen/Qwen3-8B
  edgekit inspect unsloth/gemma-3-27b-it-GGUF:Q4_K_M --light
  edgekit inspect model.gguf --layers --tensors
  edgekit inspect model.gguf --json | jq .tensor_bytes

"""


def add_inspect(commands: Commands) -> None:
    parser = add_command(
        commands,
        "inspect",
        run="facts:run_inspect",
        usage="edgekit inspect MODEL [--quant NAME] [--layers] [--tensors] [--keys] [options]",
        description="Shows what a model is, from its header alone: layers, KV cache size, context length, and where "
        "its bytes are.",
        epilog=MODEL_FORMS + _INSPECT_EXAMPLES + ENVIRONMENT,
    )
    parser.add_argument("model", metavar="MODEL", help=ANY_MODEL)
    add_options(
        parser,
        {
            **JSON,
            "--layers": "list every layer",
            "--tensors": "list every tensor",
            "--keys": "list every key of the header",
            "--light": "read only the architecture: one range request for a remote GGUF; config.json "
            "and the index for safetensors",
            "--quant NAME": "show the file of a repository, or a catalog model, at this quantisation: Q4_K_M",
        },
    )
    add_network_options(parser)


_HARDWARE_EXAMPLES = """
examples:
  edgekit hardware
  edgekit hardware --json
  edgekit hardware --device 2x "RTX 3090" --ram 64G
  edgekit hardware --device m3-max-64
  edgekit hardware --devices

"""


def add_hardware(commands: Commands) -> None:
    parser = add_command(
        commands,
        "hardware",
        run="facts:run_hardware",
        usage="edgekit hardware [--device NAME] [--ram SIZE] [--vram SIZES] [--devices] [--json]",
        description="Shows the memory and GPUs of this machine, what limits and uses them, and how much llama.cpp, "
        "vLLM and MLX may use: what is free, minus a reserve.",
        epilog=DEVICE_FORMS + _HARDWARE_EXAMPLES,
    )
    add_options(parser, {**JSON, "--devices": "list all devices that --device knows"})
    add_device_options(parser)


CATALOG_KINDS = ("chat", "code", "reasoning", "embedding", "vision")
_CATALOG_EXAMPLES = """\
examples:
  edgekit catalog list --kind code
  edgekit catalog list --family qwen3 --json
  edgekit catalog show qwen3-8b
  edgekit catalog add unsloth/Qwen3-8B-GGUF:Q4_K_M ./model.gguf
  edgekit catalog add sample:gemma-3-27b --id my-gemma
  edgekit catalog update
  edgekit catalog remove my-gemma
"""
_ADD_EXAMPLES = """
examples:
  edgekit catalog add unsloth/Qwen3-8B-GGUF:Q4_K_M
  edgekit catalog add ./model.gguf --id mine

"""


def add_catalog(commands: Commands) -> None:
    parser = add_command(
        commands,
        "catalog",
        description="The models that EdgeKit knows without downloading anything, with the source of every fact, and "
        "the models that you add. Yours are stored in your data folder, or in EDGEKIT_DATA.",
        epilog=_CATALOG_EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, summary: str, *, epilog: str = "") -> argparse.ArgumentParser:
        parser = actions.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=epilog,
            allow_abbrev=False,
        )
        add_options(parser, {"--json": "print JSON (docs/catalog.md)"})
        parser.set_defaults(run=f"facts:run_{name}")
        return parser

    parser = action("list", "list the models, one per line")
    parser.add_argument("--kind", choices=CATALOG_KINDS, help="only models for this purpose")
    add_options(
        parser, {"--family NAME": "only models of this family, e.g. qwen3, llama-3.1, gemma"}
    )
    whose = {"--user": "only models that you added", "--packaged": "only built-in models"}
    add_options(parser.add_mutually_exclusive_group(), whose)

    parser = action("show", "show everything about one model, with sources")
    parser.add_argument(
        "id", metavar="ID", help="id of the model, or its repository on Hugging Face"
    )

    epilog = MODEL_FORMS + _ADD_EXAMPLES + ENVIRONMENT
    parser = action("add", "add models to the catalog, from their headers", epilog=epilog)
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="models to add: path, hub id, URL or name"
    )
    add_options(parser, {"--id NAME": "id for the model (one model only)"})
    add_network_options(parser)

    action("remove", "remove a model that you added").add_argument("id", metavar="ID")

    summary = "read the headers of the models that you added again, and show what changed"
    parser = action("update", summary)
    parser.add_argument("id", metavar="ID", nargs="?", help="update only this model")
    add_network_options(parser)


_ESTIMATE_EXAMPLES = """
examples:
  edgekit estimate qwen3-8b --quant Q4_K_M -c 32k -ngl all -ctk q8_0 -ctv q8_0
  edgekit estimate qwen3-8b --engine vllm --device "RTX 4090" -c 32k
  edgekit estimate --batch rows.jsonl > answers.jsonl

"""


def add_estimate(commands: Commands) -> None:
    parser = add_command(
        commands,
        "estimate",
        run="estimate:run_estimate",
        usage="edgekit estimate MODEL [--quant NAME] [-c N] [--engine NAME] [options]",
        description="How much memory an engine will allocate for the model: weights, KV cache and compute buffers, "
        "in each memory, and how each number is known. Does not judge whether it fits (edgekit check does).",
        epilog=MODEL_FORMS + _ESTIMATE_EXAMPLES + ENVIRONMENT,
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help=ANY_MODEL)
    add_options(
        parser,
        {
            **JSON,
            "--explain": "show the arithmetic of every line",
            "--per-layer": "show what each layer takes",
            "--batch FILE": "answer every row of a JSONL file (- is standard input): model, engine, quant, options",
            "--assume": "read no file: apply a rule of thumb to the name alone (Llama-3.1-70B:Q4_K_M)",
            **USERS,
        },
    )
    add_device_options(parser, ram=False)
    add_network_options(parser)
    add_engine_flags(parser, without=frozenset({"gpu"}))  # --device instead
