"""Flags and help of the commands that answer questions. Imports nothing heavy, so that --help is instant."""

from __future__ import annotations

import argparse

from edgekit.cli.options import (
    CHOSEN_CONTEXT,
    DEVICE_FORMS,
    ENVIRONMENT,
    MODEL_FORMS,
    add_device_options,
    add_engine_flags,
    add_flags,
    add_job_option,
    add_limit_options,
    add_min_context_option,
    add_network_options,
    add_plan_options,
    add_users_option,
    add_window_budget_option,
)
from edgekit.cli.parser import Commands, add_command
from edgekit.engines import (
    default_engine,
    either,
    engine_names,
    every_engine,
    machine_keys,
    planned_engines,
)
from edgekit.engines.flags import COMMON, CONTEXT

_CHECK_DESCRIPTION = (
    "Will the model fit in the memory of this machine, or of another? Prints the verdict, the memory it needs next to "
    "what is free, the command to run it, and what would change the answer. Reads only headers, never weights."
)
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
        description=_CHECK_DESCRIPTION,
        epilog=MODEL_FORMS + _CHECK_EXAMPLES + ENVIRONMENT,
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="file, folder, hub id, URL or name; - reads names from standard input",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument("--quiet", action="store_true", help="print the headline only")
    parser.add_argument(
        "--why",
        action="store_true",
        help="add the memory breakdown, the reasons and how each figure is known",
    )
    add_program_option(parser)
    parser.add_argument(
        "--exact",
        action="store_true",
        help="read the whole header of a remote model, even if its start is enough to answer (--json always does)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with code 1 if the model only just fits (tight)"
    )
    add_users_option(parser)
    add_min_context_option(parser)
    add_job_option(parser)
    add_window_budget_option(parser)
    add_download_options(parser)
    add_device_options(parser)
    add_limit_options(parser)
    add_network_options(parser)
    add_engine_flags(parser, several=True, context_help=CHOSEN_CONTEXT, without=machine_keys())


def add_download_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hub models that must be downloaded to be inspected")
    group.add_argument(
        "--download-up-to",
        metavar="SIZE",
        help="largest download to make without asking (default 512M)",
    )
    group.add_argument(
        "--no-download", action="store_true", help="never download, not even to inspect a model"
    )


def add_program_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="program",
        metavar="PROGRAM",
        help="print only the command or settings for this program: llama-server, ollama, lm-studio ...",
    )


_COMPARE_DESCRIPTION = (
    "One model: what llama.cpp, vLLM and MLX need for the same context, with weights and KV cache on the GPU. Several "
    "models, or a machine: one row each, with a verdict for this machine or the one that is named."
)
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
        description=_COMPARE_DESCRIPTION,
        epilog=MODEL_FORMS + DEVICE_FORMS + _COMPARE_EXAMPLES + ENVIRONMENT,
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="file, folder, hub id, URL or name; - reads names from standard input",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    add_users_option(parser)
    add_min_context_option(parser)
    add_job_option(parser)
    add_device_options(parser)
    add_limit_options(parser)
    add_network_options(parser)
    add_engine_flags(
        parser,
        several=True,
        engine_help=f"{either((*engine_names(), 'auto', 'all'))} (default: all for one model, auto for several)",
        context_help="context in tokens: 8192, 32k (default: chosen for the machine, or 32k if none is given)",
        without=machine_keys(),
    )


_PLAN_DESCRIPTION = (
    "How to run the model on this machine, or on another: quantisation, context, KV cache, layers on the GPU, draft "
    "model and number of users, each with its reason, and the commands that start it."
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
        description=_PLAN_DESCRIPTION,
        epilog=MODEL_FORMS + _PLAN_EXAMPLES + ENVIRONMENT,
    )
    parser.add_argument("model", metavar="MODEL", help="file, folder, hub id, URL or name")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument(
        "--why",
        action="store_true",
        help="add every decision, what was tried, and how each figure is known",
    )
    add_program_option(parser)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="draw memory versus context as .svg or .png (needs 'edgekit-models[plot]')",
    )
    add_plan_options(parser)
    parser.add_argument("--no-drafter", action="store_true", help="do not look for a draft model")
    parser.add_argument(
        "--nodes", metavar="N", help="number of machines like this one, joined by Ray (vLLM only)"
    )
    add_download_options(parser)
    add_device_options(parser)
    add_limit_options(parser)
    add_network_options(parser)
    hidden = (flag.key for one in every_engine() for flag in one.flags if flag.not_planned)
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
        description="Which models run best on this machine, or on another? Lists the best models of the catalog with "
        "quantisation, context, KV cache, expected speed and memory.",
        epilog=_RECOMMEND_EXAMPLES,
    )
    parser.add_argument(
        "--task",
        metavar="NAME",
        default="chat",
        help="what the model is for: chat (default), code, reasoning, vision or embed",
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help=f"engine to run it with: {default_engine().name} (default), {either(planned_engines()[1:])}",
    )
    parser.add_argument("--limit", metavar="N", help="number of models to show (default 5)")
    parser.add_argument(
        "--all-sizes",
        action="store_true",
        help="allow several models of one family instead of the best of each",
    )
    parser.add_argument(
        "--tiers",
        action="store_true",
        help="choose among the five tiers of the context-scaling memo (docs/tiers.md)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument(
        "--why", action="store_true", help="add each model's headline, bars, release and licence"
    )
    parser.add_argument(
        "--offline", action="store_true", help="no effect: recommend never uses the network"
    )
    add_plan_options(parser)
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=CHOSEN_CONTEXT),))
    add_device_options(parser)
    add_limit_options(parser)


_INSPECT_DESCRIPTION = (
    "Shows what a model is, from its header alone: layers, KV cache size, context "
    "length, and where its bytes are."
)
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
        description=_INSPECT_DESCRIPTION,
        epilog=MODEL_FORMS + _INSPECT_EXAMPLES + ENVIRONMENT,
    )
    parser.add_argument("model", metavar="MODEL", help="file, folder, hub id, URL or name")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument("--layers", action="store_true", help="list every layer")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--keys", action="store_true", help="list every key of the header")
    parser.add_argument(
        "--light",
        action="store_true",
        help="read only the architecture: one range request for a remote GGUF; config.json "
        "and the index for safetensors",
    )
    parser.add_argument(
        "--quant",
        metavar="NAME",
        help="show the file of a repository, or a catalog model, at this quantisation: Q4_K_M",
    )
    add_network_options(parser)


_HARDWARE_DESCRIPTION = (
    "Shows the memory and GPUs of this machine, what limits and uses them, and how much "
    "llama.cpp, vLLM and MLX may use: what is free, minus a reserve."
)
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
        description=_HARDWARE_DESCRIPTION,
        epilog=DEVICE_FORMS + _HARDWARE_EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument(
        "--devices", action="store_true", help="list all devices that --device knows"
    )
    add_device_options(parser)


CATALOG_KINDS = ("chat", "code", "reasoning", "embedding", "vision")
_CATALOG_DESCRIPTION = (
    "The models that EdgeKit knows without downloading anything, with the source of "
    "every fact, and the models that you add. Yours are stored in your data folder, or "
    "in EDGEKIT_DATA."
)
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
        commands, "catalog", description=_CATALOG_DESCRIPTION, epilog=_CATALOG_EXAMPLES
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
        parser.add_argument("--json", action="store_true", help="print JSON (docs/catalog.md)")
        parser.set_defaults(run=f"facts:run_{name}")
        return parser

    parser = action("list", "list the models, one per line")
    parser.add_argument("--kind", choices=CATALOG_KINDS, help="only models for this purpose")
    parser.add_argument(
        "--family", metavar="NAME", help="only models of this family, e.g. qwen3, llama-3.1, gemma"
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--user", action="store_true", help="only models that you added")
    whose.add_argument("--packaged", action="store_true", help="only built-in models")

    parser = action("show", "show everything about one model, with sources")
    parser.add_argument(
        "id", metavar="ID", help="id of the model, or its repository on Hugging Face"
    )

    epilog = MODEL_FORMS + _ADD_EXAMPLES + ENVIRONMENT
    parser = action("add", "add models to the catalog, from their headers", epilog=epilog)
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="models to add: path, hub id, URL or name"
    )
    parser.add_argument("--id", metavar="NAME", help="id for the model (one model only)")
    add_network_options(parser)

    action("remove", "remove a model that you added").add_argument("id", metavar="ID")

    summary = "read the headers of the models that you added again, and show what changed"
    parser = action("update", summary)
    parser.add_argument("id", metavar="ID", nargs="?", help="update only this model")
    add_network_options(parser)


_ESTIMATE_DESCRIPTION = (
    "How much memory an engine will allocate for the model: weights, KV cache and compute buffers, in each memory, and "
    "how each number is known. Does not judge whether it fits (edgekit check does)."
)
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
        description=_ESTIMATE_DESCRIPTION,
        epilog=MODEL_FORMS + _ESTIMATE_EXAMPLES + ENVIRONMENT,
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="file, folder, hub id, URL or name"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument("--explain", action="store_true", help="show the arithmetic of every line")
    parser.add_argument("--per-layer", action="store_true", help="show what each layer takes")
    parser.add_argument(
        "--batch",
        metavar="FILE",
        help="answer every row of a JSONL file (- is standard input): model, engine, quant, options",
    )
    parser.add_argument(
        "--assume",
        action="store_true",
        help="read no file: apply a rule of thumb to the name alone (Llama-3.1-70B:Q4_K_M)",
    )
    add_users_option(parser)
    add_device_options(parser, ram=False)
    add_network_options(parser)
    add_engine_flags(parser, without=frozenset({"gpu"}))  # --device instead
