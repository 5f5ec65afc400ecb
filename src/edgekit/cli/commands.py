"""The flags and the help of every command. Imports nothing heavy: --help must be instant."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from edgekit.cli.flags import (
    ACCEPTANCE,
    ANY_MODEL,
    ASK_ENGINE,
    CHOSEN_CONTEXT,
    DEFAULT_NEW_TOKENS,
    DEVICE_FORMS,
    DEVICES,
    DEVICES_WITHOUT_RAM,
    DOWNLOADS,
    ENVIRONMENT,
    JOB,
    JSON,
    LIMITS,
    MIN_CONTEXT,
    MIN_SPEED,
    MODEL_FORMS,
    MODELS,
    NETWORK,
    NO_CACHE,
    OFFLINE,
    ONE_OF,
    PLAN,
    PROGRAM,
    PROMPT,
    SERVE_PORT,
    USERS,
    WINDOW_BUDGET,
    Rows,
    add_command,
    add_engine_flags,
    add_flags,
    add_options,
    engine_row,
    several_engines,
)
from edgekit.cli.parser import Commands
from edgekit.engines import (
    default_engine,
    either,
    engine_names,
    every_engine,
    machine_keys,
    planned_engines,
    program_names,
    startable,
)
from edgekit.engines.flags import COMMON, CONTEXT, QUANT, Whole
from edgekit.errors import UsageError

# Flags of both check and share.
_CHECKED: Rows = {
    **USERS,
    **MIN_CONTEXT,
    **MIN_SPEED,
    **JOB,
    **PROMPT,
    **ACCEPTANCE,
    **WINDOW_BUDGET,
    **DOWNLOADS,
    **DEVICES,
    **LIMITS,
    **NETWORK,
}

_CHECK_EXAMPLES = """
Several models, a folder of models, or - (names on standard input) give a table.

examples:
  edgekit check qwen3-8b --device "RTX 4060"
  edgekit check "Gemma 3 27B" --quant Q8_0 -c 32k --vram 24G,24G --ram 64G
  edgekit check gemma-3-27b --device "RTX 4090" --ram 64G --ladder
  edgekit check ~/models

exit codes: 0 it loads (1 if it is tight and --strict is given), 3 does not fit, is slower than --min-speed or cannot
run there, 2 wrong usage or refused by the engine, 4 not found, no access or no network, 5 unreadable or unsupported.
Several models: the worst code; several engines: the best.
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
        options={
            **MODELS,
            **JSON,
            "--quiet": "print the headline only",
            "--why": "add the memory breakdown, the reasons and how each figure is known",
            **PROGRAM,
            **ASK_ENGINE,
            "--exact": "read the whole header of a remote model, even if its start is enough to answer "
            "(--json always does)",
            "--ladder": "list every quantisation of one model: size, verdict, speed, context and quality loss",
            "--strict": "exit with code 1 if the model only just fits (tight)",
            **_CHECKED,
            **engine_row(several_engines()),
        },
    )
    add_engine_flags(parser, engine_names(), context_help=CHOSEN_CONTEXT, without=machine_keys())


_SHARE_DESCRIPTION = """\
Writes the answer of `edgekit check` as one HTML file that needs no network, no script and no other file: the verdict,
the memory, the commands, and how to get the same answer. Local folders and user names are left out.
"""
_SHARE_EXAMPLES = """
examples:
  edgekit share gemma-3-27b --device "RTX 4090" --ram 64G
  edgekit share qwen3-8b --device "RTX 4060" -c 32k -o answer.html --force
  edgekit share qwen3-8b --device "RTX 4060" --badge badge.svg --picture picture.svg --theme dark
  edgekit share model.gguf --device m3-max-64 -o - > answer.html

exit codes: 0 written, whatever the verdict (--json has it), 1 a file cannot be written, 2 wrong usage, a file exists or
refused by the engine, 3 the engine cannot run there, 4 not found, no access or no network, 5 unreadable or unsupported
"""


def add_share(commands: Commands) -> None:
    parser = add_command(
        commands,
        "share",
        run="share:run_share",
        usage="edgekit share MODEL [-o FILE] [--badge FILE] [--picture FILE] [any flag of check]",
        description=_SHARE_DESCRIPTION,
        epilog=MODEL_FORMS + _SHARE_EXAMPLES + ENVIRONMENT,
        options={
            "MODEL": ANY_MODEL,
            "--json": "print which files were written, and the verdict, as JSON (docs/json.md)",
            "-o, --output FILE": "the HTML file; - for standard output (default: from the model and the machine, "
            "gemma-3-27b-rtx-4090.html, in this folder)",
            "--badge FILE": "write a badge for a model card or a README as well, as SVG",
            "--picture FILE": "write the picture of 1200 x 630 pixels as well, as SVG",
            "--theme NAME": "colours of --picture: light (default) or dark; the HTML file has both",
            "--force": "overwrite files that exist",
            **ASK_ENGINE,
            **_CHECKED,
            **engine_row((*engine_names(), "auto")),
        },
    )
    add_engine_flags(parser, engine_names(), context_help=CHOSEN_CONTEXT, without=machine_keys())


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
        options={
            **MODELS,
            **JSON,
            **USERS,
            **MIN_CONTEXT,
            **JOB,
            **DEVICES,
            **LIMITS,
            **NETWORK,
            "--engine NAME": f"{either(several_engines())} (default: all for one model, auto for several)",
        },
    )
    context = (
        "context in tokens: 8192, 32k (default: chosen for the machine, or 32k if none is given)"
    )
    add_engine_flags(parser, engine_names(), context_help=context, without=machine_keys())


_TOGETHER_EXAMPLES = """
Each model runs in an engine process of its own, so every bill counts in full. Without -c all of them get the same
context, at least 16K. Name the most important models first: if not all fit, those stay.

examples:
  edgekit together qwen3-8b llama-3.1-8b --device "RTX 4090"
  edgekit together qwen3-8b gemma-3-27b nomic-embed-text-v1.5 -c 32k,16k,2k --device "2x RTX 3090" --ram 64G
  edgekit together qwen3-8b phi-4 gemma-3-12b --for llama-swap > config.yaml

exit codes: 0 all fit, or a configuration was printed; 3 not all fit at the same time, 2 wrong usage or refused by the
engine, 4 not found, no access or no network, 5 unreadable or unsupported
"""


def add_together(commands: Commands) -> None:
    parser = add_command(
        commands,
        "together",
        run="together:run_together",
        usage="edgekit together MODEL MODEL ... [-c N | -c N,N,...] [--device NAME] [--for PROGRAM] [options]",
        description="Which of these models fit in the memory of this machine, or of another, at the same time, and "
        "with which contexts? Shows what each one takes of every memory and the total; if not all fit, which ones do.",
        epilog=MODEL_FORMS + _TOGETHER_EXAMPLES + ENVIRONMENT,
        options={
            "MODEL...": f"{ANY_MODEL}; two or more, the most important first",
            **JSON,
            "-c, --ctx-size, --context N": "context of all models: 16k; or of each, in order: 32k,8k (default: the "
            "same for all, chosen to fit, from 16k up)",
            "--for PROGRAM": "print a configuration file for this program instead: llama-swap or llama-server-router",
            **USERS,
            **MIN_CONTEXT,
            **MIN_SPEED,
            **DEVICES,
            **LIMITS,
            **NETWORK,
            **engine_row(engine_names()),
        },
    )
    add_flags(parser, COMMON, "every engine", (QUANT,))


_PLAN_EXAMPLES = """
examples:
  edgekit plan qwen3-30b-a3b
  edgekit plan gemma-3-27b --device "RTX 4090" --ram 64G -c 32k --why
  edgekit plan qwen3-8b --engine vllm --device h100 --users 8 -c 16k

exit codes: 0 there is a plan, 3 nothing fits, nothing is as fast as --min-speed or the engine cannot run there,
2 wrong usage, contradicting flags or refused by the engine, 4 not found, no access or no network, 5 unreadable or
unsupported
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
        options={
            "MODEL": ANY_MODEL,
            **JSON,
            "--why": "add every decision, what was tried, and how each figure is known",
            **PROGRAM,
            **ASK_ENGINE,
            "--plot FILE": "draw memory versus context as .svg or .png (needs 'edgekit-models[plot]')",
            **PLAN,
            **PROMPT,
            **ACCEPTANCE,
            "--no-drafter": "do not look for a draft model",
            "--nodes N": "number of machines like this one, joined by Ray (vLLM only)",
            **DOWNLOADS,
            **DEVICES,
            **LIMITS,
            **NETWORK,
            **engine_row(planned_engines()),
        },
    )
    hidden = (flag.key for engine in every_engine() for flag in engine.flags if flag.not_planned)
    add_engine_flags(
        parser,
        planned_engines(),
        hidden=frozenset(hidden),
        context_help=CHOSEN_CONTEXT,
        without=machine_keys(),
    )


_RECOMMEND_EXAMPLES = """
examples:
  edgekit recommend
  edgekit recommend --device "RTX 4090" --ram 64G --users 4 -c 16k
  edgekit recommend --task code --device m4-max-64 --engine mlx

Chooses among the models of the index (edgekit index list; edgekit index add MODEL adds one). Needs no network.
exit codes: 0 something fits, 3 nothing fits, nothing is as fast as --min-speed or the engine cannot run there, 2 wrong
usage
"""


def add_recommend(commands: Commands) -> None:
    default, others = default_engine().name, either(planned_engines()[1:])
    parser = add_command(
        commands,
        "recommend",
        run="plan:run_recommend",
        usage="edgekit recommend [--task NAME] [-c N] [--users N] [--device NAME] [--engine NAME] [options]",
        description="Which models run best on this machine, or on another? Lists the best models of the index "
        "with quantisation, context, KV cache, expected speed and memory.",
        epilog=_RECOMMEND_EXAMPLES,
        options={
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
        task="chat",
    )
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=CHOSEN_CONTEXT),))
    add_options(parser, {**DEVICES, **LIMITS})


_SEARCH_EXAMPLES = """\
A word is part of a model's name, family or publisher, a size or version, or a purpose: qwen, 27b, google, coding. All
words have to match, in any order and spelling.

examples:
  edgekit search qwen coder --fits --device "RTX 4090" --ram 64G
  edgekit search vision --fits --min-context 32k --license apache-2.0 --max-params 14B
  edgekit search --task code --released-after 2026 --sort speed --limit 20

--sort takes quality (default), speed, size, context, released, uses or name, the best first. Quality is the lower end
of its 80 % interval, less what the quantisation costs; models without scores that few people use come last. Every
figure is that of edgekit plan. Needs no network.
exit codes: 0 models were found, 3 models match but none of them fits (--fits), or the engine cannot run there, 4 no
model matches, 2 wrong usage
"""


def add_search(commands: Commands) -> None:
    default, others = default_engine().name, either(planned_engines()[1:])
    parser = add_command(
        commands,
        "search",
        run="search:run_search",
        usage="edgekit search [WORD ...] [--fits] [--task NAME] [--sort NAME] [--device NAME] [options]",
        description="Which models of the index match, and how would they run on this machine, or on another? Lists "
        "them with quantisation, download, context, memory, speed and quality.",
        epilog=_SEARCH_EXAMPLES,
        options={
            "[WORD...]": "what to look for; none: every model",
            "--fits": "only models that fit this machine, or the one that is named",
            "--sort NAME": "order: quality (default), speed, size, context, released, uses or name",
            "--limit N": "number of models to show (default 10)",
            **JSON,
            "--offline": "no effect: search never uses the network",
            "which models": {
                "--task NAME": "only models for this task: chat, code, reasoning, vision or embed",
                "--family NAME": "only models of this family: qwen3, llama-3.1, gemma",
                "--publisher NAME": "only models of this publisher: google, mistralai",
                "--licence, --license NAME": "only models under this licence: apache-2.0, mit",
                "--min-params SIZE": "least number of parameters: 7B, 500M",
                "--max-params SIZE": "largest number of parameters: 40B",
                "--released-after DATE": "only models released in this month or later: 2025-06",
                "--exact": "only models whose geometry is their own, or proved equal",
            },
            "how to run them": {
                "--engine NAME": f"engine to run them with: {default} (default), {others}",
                **USERS,
                "--min-context N": "shortest context to accept; without --fits, the shortest native context",
                "--min-speed TOKENS_PER_S": "slowest typical speed to accept, in tokens per second: 20 (only models "
                "that fit)",
                **JOB,
                "--prefer-accurate-kv": "without -c, prefer an accurate KV cache to a longer context",
            },
        },
    )
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=CHOSEN_CONTEXT), QUANT))
    add_options(parser, {**DEVICES, **LIMITS})


_INSPECT_EXAMPLES = """
examples:
  edgekit inspect Qwen/Qwen3-8B
  edgekit inspect unsloth/gemma-3-27b-it-GGUF:Q4_K_M --light
  edgekit inspect model.gguf --layers --tensors
  edgekit inspect model.gguf --json | jq .tensor_bytes

"""


def add_inspect(commands: Commands) -> None:
    add_command(
        commands,
        "inspect",
        run="facts:run_inspect",
        usage="edgekit inspect MODEL [--quant NAME] [--layers] [--tensors] [--keys] [options]",
        description="Shows what a model is, from its header alone: layers, KV cache size, context length, and where "
        "its bytes are.",
        epilog=MODEL_FORMS + _INSPECT_EXAMPLES + ENVIRONMENT,
        options={
            "MODEL": ANY_MODEL,
            **JSON,
            "--layers": "list every layer",
            "--tensors": "list every tensor",
            "--keys": "list every key of the header",
            "--light": "read only the architecture: one range request for a remote GGUF; config.json "
            "and the index for safetensors",
            "--quant NAME": "show the file of a repository, or a model of the index, at this quantisation: Q4_K_M",
            **NETWORK,
        },
    )


_HARDWARE_EXAMPLES = """
examples:
  edgekit hardware
  edgekit hardware --json
  edgekit hardware --device 2x "RTX 3090" --ram 64G
  edgekit hardware --device m3-max-64
  edgekit hardware --cpu "Ryzen 7 7700" --ram "2x16G DDR5-6000"
  edgekit hardware --measure
  edgekit hardware --upgrades --task code
  edgekit hardware --devices

"""


def add_hardware(commands: Commands) -> None:
    add_command(
        commands,
        "hardware",
        run="facts:run_hardware",
        usage="edgekit hardware [--device NAME] [--ram SIZE] [--vram SIZES] [--cpu NAME] [--measure] [--devices]"
        " [--upgrades] [--json]",
        description="Shows the memory and GPUs of this machine, what limits and uses them, and how much llama.cpp, "
        "vLLM and MLX may use: what is free, minus a reserve. Lists the programs found here that run models.",
        epilog=DEVICE_FORMS + _HARDWARE_EXAMPLES,
        options={
            **JSON,
            "--devices": "list all devices that --device knows",
            "--upgrades": "how many models would run fully on a GPU with more memory, or less",
            "--task TASK": "with --upgrades: chat (default), code, reasoning, vision or embed",
            "--measure": "measure the RAM bandwidth of this machine now (under a second) and save it",
            **DEVICES,
        },
    )


INDEX_KINDS = ("chat", "code", "reasoning", "embedding", "vision")
_INDEX_EXAMPLES = """\
examples:
  edgekit index list --kind code
  edgekit index list --text "qwen coder" --licence apache-2.0
  edgekit index list --family qwen3 --all --json
  edgekit index show qwen3-8b
  edgekit index add unsloth/Qwen3-8B-GGUF:Q4_K_M ./model.gguf
  edgekit index add sample:gemma-3-27b --id my-gemma
  edgekit index update
  edgekit index remove my-gemma

edgekit catalog is the same command.
"""
_ADD_EXAMPLES = """
examples:
  edgekit index add unsloth/Qwen3-8B-GGUF:Q4_K_M
  edgekit index add ./model.gguf --id mine

"""
_BUILD_OPTIONS: Rows = {
    "--out DIR": "folder for the index; a build that was stopped there continues",
    "--from HUB": "hub to crawl: `hub` (HF_ENDPOINT, else Hugging Face) or a URL",
    "which repositories": {
        "--author NAME": "only those of this user or organisation",
        "--search TEXT": "only those with this text in their names",
        "--filter TAG...": "only those with this tag of the hub; repeat it for several",
        "--limit N": "only the N most downloaded",
    },
    "requests": {
        "--rate N": "requests per second, of all workers together (default: what the hub allows)",
        "--at-once N": "requests at the same time (default 16)",
        "--no-sizes": "do not ask for sizes of files that the listing does not state",
    },
    "several machines": {
        "--ray ADDRESS": "fetch on the Ray cluster at this address; local: a Ray on this machine",
        "--workers N": "workers on Ray (default: its CPUs)",
    },
    "--date DATE": "date of the index (default: today)",
    "--restart": "discard what an earlier build left in the folder",
}
_UPDATE_EXAMPLES = """
examples:
  edgekit index update
  edgekit index update https://example.org/edgekit/index.sqlite
  edgekit index update ./index.sqlite --signers allowed_signers

A model is taken from the newest index that has it; models that a published index lacks stay. Every row is checked
first, and the new copy replaces the old one at once.

exit codes: 0 done, 1 the index cannot be written, 2 usage or no checksum, 4 not found or no network, 5 damaged, or not
what its checksum or signature says
"""
_BUILD_EXAMPLES = """
examples:
  edgekit index build --out my-index --author unsloth --limit 100
  edgekit index build --out my-index --from https://hub.example.org

"""


def add_index(commands: Commands) -> None:
    parser = add_command(
        commands,
        "index",
        description="The models that EdgeKit knows without downloading anything, with the source of every fact, and "
        "the models that you add. Yours are stored in your data folder, or in EDGEKIT_DATA.",
        epilog=_INDEX_EXAMPLES,
        options={},
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(
        name: str, summary: str, options: Rows, *, epilog: str = "", run: str = ""
    ) -> argparse.ArgumentParser:
        parser = actions.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=epilog,
            allow_abbrev=False,
        )
        add_options(parser, {"--json": "print JSON (docs/index.md)", **options})
        parser.set_defaults(run=run or f"index:run_{name}")
        return parser

    listing = action("list", "list the models, the most used first", {})
    listing.add_argument("--kind", choices=INDEX_KINDS, help="only models for this purpose")
    add_options(
        listing,
        {
            "--family NAME": "only models of this family, e.g. qwen3, llama-3.1, gemma",
            "--publisher NAME": "only models of this publisher: google, mistralai",
            "--licence, --license NAME": "only models under this licence: apache-2.0, mit",
            "--text WORDS": "only models with all of these words in their names",
            "--exact": "only models whose geometry is their own, or proved equal",
            ONE_OF: {
                "--user": "only models that you added",
                "--packaged": "only built-in models",
            },
        },
    )
    add_options(
        listing,
        {
            ONE_OF: {
                "--limit N": "list the first N (default 40; with --json all)",
                "--all": "list all of them",
            }
        },
    )
    action(
        "show",
        "show everything about one model, with sources",
        {"ID": "id of the model, or its repository on Hugging Face"},
    )
    action(
        "add",
        "add models to the index, from their headers",
        {
            "MODEL...": "models to add: path, hub id, URL or name",
            "--id NAME": "id for the model (one model only)",
            **NETWORK,
        },
        epilog=MODEL_FORMS + _ADD_EXAMPLES + ENVIRONMENT,
    )
    action("remove", "remove a model that you added", {"ID": ""})
    action(
        "update",
        "merge a published index into yours, and read the models that you added again",
        {
            "[ADDRESS]": "URL or file of a published index.sqlite; or the id of a model that you added, to read only "
            "this one",
            "--from ADDRESS": "published index (or EDGEKIT_INDEX_URL)",
            "a published index": {
                "--sha256 DIGEST": "its SHA-256 (default: from ADDRESS.sha256 or SHA256SUMS next to it)",
                "--signers FILE": "also check ADDRESS.sig with OpenSSH (ssh-keygen) against this list of allowed "
                "signers",
            },
            **NETWORK,
        },
        epilog=_UPDATE_EXAMPLES,
    )
    action(
        "build",
        "build an index of the repositories of a hub",
        _BUILD_OPTIONS,
        epilog=_BUILD_EXAMPLES,
        run="index_build:run_build",
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
        description="How much memory an engine will allocate for the model: weights, KV cache and compute buffers, "
        "in each memory, and how each number is known. Does not judge whether it fits (edgekit check does).",
        epilog=MODEL_FORMS + _ESTIMATE_EXAMPLES + ENVIRONMENT,
        options={
            "[MODEL]": ANY_MODEL,
            **JSON,
            "--explain": "show the arithmetic of every line",
            "--per-layer": "show what each layer takes",
            **ASK_ENGINE,
            "--batch FILE": "answer every row of a JSONL file (- is standard input): model, engine, quant, options",
            "--assume": "read no file: apply a rule of thumb to the name alone (Llama-3.1-70B:Q4_K_M)",
            **USERS,
            **DEVICES_WITHOUT_RAM,
            **NETWORK,
            **engine_row(engine_names()),
        },
    )
    add_engine_flags(parser, engine_names(), without=frozenset({"gpu"}))  # --gpu is --device


# Keys of engines' flags for which `run` and `serve` have flags of their own, or which they set themselves.
_SET_BY_US = frozenset({
    "ctx_shift", "sinks", "rolling", "threads", "max_tokens", "mode", "mix", "embeddings", "llama_version",
})  # fmt: skip


def start_options(verb: str) -> Rows:
    """The options of both `run` and `serve`: the engine, the context, and what happens before it starts."""
    engines = [engine.name for engine in startable(verb)]
    return {
        "--engine NAME": f"rules to plan by: {', '.join(engines)} (default: by the model's files)",
        "--with PROGRAM": f"program to start: {', '.join(program_names(verb))} (default: the best one found; "
        "edgekit hardware lists them)",
        "the context": {
            "--sinks N": "first tokens that a rolling context never drops (default 0)",
            "--rolling, --context-shift": "drop the oldest tokens of a full context and continue (not with ollama, "
            "vllm or mlx)",
            **MIN_CONTEXT,
            **WINDOW_BUDGET,
        },
        **LIMITS,
        "before it starts": {
            "--download-up-to SIZE": "largest download to make (default: anything that fits)",
            "--no-download": "never download",
            "-y, --yes": "download without asking",
            "-t, --threads N": "CPU threads (default: one per core)",
            "--force": "start even if the model does not fit (it may swap, or be killed)",
        },
        **NETWORK,
    }


def add_start_flags(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flags of the engines that `run` or `serve` can start."""
    engines = tuple(engine.name for engine in startable(verb))
    default = (
        "what the prompt and the answer need" if verb == "run" else "chosen to fit, from 16k up"
    )
    context = f"context in tokens: 8192, 32k, 0 for the native context (default: {default})"
    without = machine_keys() | _SET_BY_US
    own = frozenset({"-q"})  # --quiet
    add_engine_flags(parser, engines, context_help=context, without=without, own=own)


_PROGRAMS = """
programs (--with); the default is the best one installed, for the model's files and this machine's GPU:
  xllamacpp      llama.cpp as a Python package: pip install 'edgekit-models[llama]'
  llama-server   llama.cpp's own server: brew, winget or its releases page
  ollama         an Ollama server with these settings; only used with --with ollama
  vllm           vllm serve, for an NVIDIA GPU: pip install vllm
  mlx            mlx_lm.server: pip install mlx-lm
"""
_RUN_DESCRIPTION = """\
Runs a model in the memory that edgekit check predicts: checks it first, downloads it only if it fits, and starts a
program on this machine with the checked settings. Answers one prompt, or starts a chat if there is none. The context
for a prompt is its length, the new tokens and 64 more; a chat gets the one that edgekit check chooses.
"""
_STREAM = """\
  stream         the built-in engine, which reads weights from disk as it needs them: slow for large models, but in
                 much less memory than their size (llama, qwen2, qwen3, gemma3): pip install 'edgekit-models[embed]'
"""
_RUN_EXAMPLES = """
examples:
  edgekit run model.gguf -p "Why is the sky blue?" --max-tokens 200
  git diff | edgekit run model.gguf --system "Review this change."
  edgekit run unsloth/gemma-3-4b-it-GGUF --quant Q4_K_M --image photo.jpg -p "What is this?"
  edgekit run model.gguf -p "Is it raining in Rome?" --tools tools.json --json
  edgekit run model.gguf --save rome -p "Plan three days in Rome."
  edgekit run --resume rome -p "Make it two days."

in a chat: /image FILE adds an image to the next message, /save NAME saves the conversation, /reset clears the history,
/exit or Ctrl-D ends it, Ctrl-C stops an answer

exit codes: 0 done, 2 wrong usage, program not installed, or refused by it, 3 does not fit or stopped before memory ran
out, 4 not found, no access, or the conversation not saved, 5 unreadable, or the program died (with its last output),
130 interrupted, 143 ended by SIGTERM
"""


def add_run(commands: Commands) -> None:
    parser = add_command(
        commands,
        "run",
        run="launch:run_model",
        usage="edgekit run MODEL [--quant NAME] [-p PROMPT | -f FILE] [--image FILE] [-n N] [-c N] [options]",
        description=_RUN_DESCRIPTION,
        epilog=MODEL_FORMS + _RUN_EXAMPLES + _PROGRAMS + _STREAM + "\n" + ENVIRONMENT,
        options={
            "[MODEL]": "file, folder, hub id or name; with --resume by default the conversation's",
            "--json": "print the answer and its figures as JSON (docs/run.md)",
            "-q, --quiet": "print only the answer: no reasoning, no figures",
            "the prompt": {
                ONE_OF: {
                    "-p, --prompt TEXT": "prompt to answer (default: a chat)",
                    "-f, --file FILE": "read the prompt from a file; - is standard input",
                },
                "--system TEXT": "system prompt",
                "--image FILE...": "PNG, JPEG, GIF or WebP image for a vision model, whose projector (mmproj) is then "
                "loaded; repeat it for several",
                "--tools JSON": "functions that the model may call, as in OpenAI's API: a file, or the array itself; "
                "tool calls are printed, not executed",
                "--raw": "continue the text as it is, without the model's chat template",
                "-n, --max-tokens, --n-predict N": f"most new tokens (default {DEFAULT_NEW_TOKENS}; in a chat, until "
                "the model ends)",
            },
            "a conversation": {
                "--save NAME": "save the conversation under a new name",
                "--resume NAME": "continue a saved conversation (edgekit conversations lists them); with --save, a "
                "copy of it",
            },
        },
    )
    group = parser.add_argument_group("sampling")
    for field, (names, metavar, _, text) in SAMPLING_FLAGS.items():
        group.add_argument(*names, dest=field, metavar=metavar, help=text)
    add_options(group, {"--stop TEXT...": "end the answer before this text; repeat it for several"})
    add_options(
        parser,
        {
            **start_options("run"),
            "--budget SIZE": "memory limit of the whole process, only for --with stream: 512M",
            "--latency FOR": "longest wait for cache pages on disk (--resident): text (1.5 s, default) or "
            "voice (0.2 s)",
        },
    )
    add_start_flags(parser, "run")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number") from None


# Field of Sampling -> the names of its flag, metavar, parser and help.
SAMPLING_FLAGS: dict[str, tuple[tuple[str, ...], str, Callable[[str], float], str]] = {
    "temperature": (("--temp", "--temperature"), "T", _number, "temperature; 0 takes the top token (default 0.8)"),
    "top_k": (("--top-k",), "K", Whole(), "sample among the K likeliest tokens (default 40; 0: all)"),
    "top_p": (("--top-p",), "P", _number, "sample among tokens of total probability P (default 0.95; 1: all)"),
    "min_p": (("--min-p",), "P", _number, "drop tokens below P times the likeliest (default 0.05; 0: none)"),
    "repeat_penalty": (("--repeat-penalty",), "X", _number, "penalty on repeated tokens (default 1: none)"),
    "repeat_last": (("--repeat-last-n",), "N", Whole(), "tokens to look back for repetitions (default 64)"),
    "seed": (("-s", "--seed"), "N", Whole(most=2**32 - 2), "random seed; the same seed gives the same answer"),
}  # fmt: skip


_CONVERSATIONS_EXAMPLES = """
examples:
  edgekit run model.gguf --save rome -p "Plan three days in Rome."
  edgekit conversations list
  edgekit conversations show rome
  edgekit conversations delete rome

Conversations are stored in conversations.db in EdgeKit's data folder (EDGEKIT_DATA), which only you can read.

exit codes: 0 done, 2 wrong usage, 4 not found or not readable, 5 the file is damaged
"""


def add_conversations(commands: Commands) -> None:
    parser = add_command(
        commands,
        "conversations",
        description="Lists, shows and deletes the conversations that edgekit run --save has saved. edgekit run "
        "--resume NAME continues one.",
        epilog=_CONVERSATIONS_EXAMPLES,
        options={},
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, summary, options in (
        ("list", "list the conversations, most recently used first", {}),
        ("show", "print a conversation", {"NAME": "name of the conversation"}),
        ("delete", "delete conversations", {"NAME...": "names of the conversations"}),
    ):
        action = actions.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        add_options(action, {"--json": "print JSON (docs/run.md)", **options})
        action.set_defaults(run=f"conversations:run_{name}")


_SERVE_DESCRIPTION = """\
Serves one or several models with OpenAI's API. Starts a program on this machine with the settings that were checked:
context, KV cache, layers on the GPU, slots, draft model. Clients talk to EdgeKit's gateway, which refuses requests
that need more memory than planned. Memory is watched: a program is stopped, with a reason, before the system would
kill it. Several models: those that fit together stay loaded; others are loaded on request and replace them.
"""
_SERVE_EXAMPLES = """
examples:
  edgekit serve model.gguf
  edgekit serve unsloth/gemma-3-4b-it-GGUF --quant Q4_K_M --port 9000 --users 4 -c 8k
  edgekit serve model.gguf --host 0.0.0.0 --api-key SECRET --restart on-failure
  edgekit serve qwen3-8b gemma-3-4b --budget 12G

endpoints: /v1/chat/completions, /v1/completions, /v1/models, /health (503 while it loads, then 200); more, by program,
in docs/run.md

The gateway needs pip install 'edgekit-models[serve]'. Without it, or with --no-gateway, clients of a single model talk
to the program's own server; several models, --allow-host and --allow-origin always need the gateway.
"""


_SERVE_EXIT_CODES = """
exit codes: 0 ended by Ctrl-C or SIGTERM after it was up, 2 wrong usage, port in use, program not installed, or refused
by it, 3 does not fit or stopped before memory ran out, 4 not found or no access, 5 unreadable, or the program of a
single model died (with its last output) and was not started again, 130 interrupted before it was up
"""


def add_serve(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve",
        run="serve:run_serve",
        usage="edgekit serve MODEL [MODEL ...] [--quant NAME] [--port N] [-c N] [--users N] [options]",
        description=_SERVE_DESCRIPTION,
        epilog=MODEL_FORMS + _SERVE_EXAMPLES + _PROGRAMS + _SERVE_EXIT_CODES + "\n" + ENVIRONMENT,
        options={
            "MODEL...": "file, folder, hub id or name; several share the memory",
            "--json": "print events as lines of JSON (docs/run.md)",
            "-q, --quiet": "print only the address, warnings, and why the server ended",
            "the server": {
                "--host ADDRESS": "address to listen on (default 127.0.0.1, this machine only); any other needs "
                "--api-key",
                "--port N": f"port to listen on (default {SERVE_PORT}); 0 takes any free port",
                "--api-key KEY": "key that clients must send (default: the variable LLAMA_API_KEY)",
                "--insecure": "serve other machines (--host) without --api-key",
                "-a, --alias NAME": "name of a single model for clients",
                "--restart POLICY": "what to do when the program of a single model dies: no (default), or on-failure, "
                "with a growing pause; on-failure:5 gives up after five times. Several models always start again",
                "--allow-host NAME...": "accept requests for this host name too (repeatable)",
                "--allow-origin ORIGIN...": "allow web pages of this site: https://chat.example (repeatable)",
                "--budget SIZE": "memory limit of all models together, on each GPU, or in RAM without a GPU: 24G "
                "(default: what is free)",
                "--no-gateway": "let clients talk to the program's own server: requests are not checked",
            },
            **USERS,
            **start_options("serve"),
        },
        host="127.0.0.1",
        json_lines=True,
    )
    add_start_flags(parser, "serve")


_DOWNLOAD_EXAMPLES = """
examples:
  edgekit download qwen3-8b:Q8_0
  edgekit download "Gemma 3 27B"
  edgekit download unsloth/Qwen3-8B-GGUF:Q4_K_M
  edgekit download qwen3-8b:4bit                  the MLX repository; AWQ, GPTQ, FP8 likewise
  edgekit download mlx-community/Qwen3-8B-4bit

A name is downloaded as GGUF, at the quantisation that edgekit plan chooses for this machine or the one given, from the
publisher's own repository if it has one, else from a well-known maker's; if a repository is gone, from the next. A
vision model comes with its image projector. Files go to the hub's cache, where edgekit run, llama.cpp (-hf), vLLM and
MLX find them. Complete files are not fetched again.

exit codes: 0 done, 2 usage, or no repository is known, 4 not found, no access, no network, or the disk is full

"""


def add_download(commands: Commands) -> None:
    add_command(
        commands,
        "download",
        run="download:run_download",
        usage="edgekit download MODEL [--quant NAME] [options]",
        description="Downloads a model into the hub's cache: finds the repository, says what it will fetch and how "
        "large it is, and checks the free disk space first.",
        epilog=MODEL_FORMS + _DOWNLOAD_EXAMPLES + ENVIRONMENT,
        options={
            "MODEL": "name, NAME:QUANT, hub id or URL",
            **JSON,
            "--quant NAME": "quantisation: Q4_K_M, Q8_0, 4bit, AWQ (default: chosen for this machine)",
            "--no-mmproj": "without the image projector of a vision model",
            "--limit SIZE": "refuse to download more than this: 20G",
            **NETWORK,
        },
    )


_VERIFY_DESCRIPTION = """\
Compares the prediction for a model with what the real llama.cpp on this machine would allocate. Only the
model's header is read: the engine gets a sparse file of the same length without the weights, and computes its
buffer sizes without allocating them.
"""
_VERIFY_EXAMPLES = """
examples:
  edgekit verify model.gguf -c 32k
  edgekit verify unsloth/gemma-3-27b-it-GGUF:Q4_K_M -c 64k -ctk q8_0 -ctv q8_0
  edgekit verify model.gguf --load

The engine is xllamacpp (pip install 'edgekit-models[llama]'; --mode server, the default), or llama.cpp's
llama-fit-params on the PATH (--mode library, or if xllamacpp is not installed).

exit codes: 0 within bounds, 1 outside, 2 usage or refused by the engine's rules, 4 not found or no access,
5 damaged or unsupported model, no engine on this machine, or the engine crashed (its last output is shown)
"""


def add_verify(commands: Commands) -> None:
    parser = add_command(
        commands,
        "verify",
        run="measure:run_verify",
        usage="edgekit verify MODEL [-c N] [llama.cpp flags] [options]",
        description=_VERIFY_DESCRIPTION,
        epilog=MODEL_FORMS + _VERIFY_EXAMPLES + ENVIRONMENT,
        options={
            "MODEL": "path, hub id, URL or name of a GGUF model",
            "--json": "print JSON (docs/verify.md)",
            "--load": "also load the model, decode a few tokens, show the memory the process really "
            "used, and save llama.cpp's overhead for later estimates (edgekit calibrate)",
            "--engine-timeout SECONDS": "time limit for the engine (default 60, with --load 600)",
            **NETWORK,
        },
    )
    add_flags(parser, COMMON, "every engine", (CONTEXT, QUANT))
    (engine, *_) = startable("verify")
    add_flags(parser, engine.name, engine.title, engine.verified_flags)


_CALIBRATE_DESCRIPTION = """\
Measures this machine and saves the results: memory bandwidth, the speed of the disk for temporary files, llama.cpp's
memory overhead, and its speed. llama.cpp runs with MODEL, which must be on this machine, or else with a generated
test model of 409 MiB that is deleted afterwards. Takes about twenty seconds.
"""
_CALIBRATE_EXAMPLES = """
examples:
  edgekit calibrate
  edgekit calibrate model.gguf
  edgekit calibrate bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  edgekit calibrate --list
  edgekit calibrate --remove
  edgekit calibrate --share speeds.jsonl            # measure, and write a record that you can give to the project
  edgekit calibrate --list --share speeds.jsonl     # a record of every speed that was saved on this machine

Results are used for this machine from then on, never for another one given with --device: speeds use the measured
memory bandwidth, llama.cpp's estimates get a line for its measured overhead, and `edgekit hardware` shows both.
Close other programs first: speeds measured on a busy machine are shown but not saved. The engine is xllamacpp (pip
install 'edgekit-models[llama]'); memory and disk speed need numpy (pip install 'edgekit-models[embed]'). What is not
installed is skipped, and the report says so. llama.cpp's overhead is saved only for models with a vocabulary of 100,000
tokens or more; the generated model has one.

With --share the record is shown before it is written: processor, GPU, RAM, engine, model and speeds, but no names of
the machine, its user, files or folders. EdgeKit sends nothing; attach the file to an issue of the project to give it.
FILE may have records already; any other file is left alone.

exit codes: 0 measured (notes say what could not be), 1 FILE cannot be written, 2 usage, or nothing to share, 4 no such
model on this machine, or the result cannot be written, 5 MODEL is damaged, or llama.cpp is not installed or crashed
(its last output is shown), 130 interrupted

environment: EDGEKIT_DATA is the folder for the results, TMPDIR the folder for temporary files
"""


def add_calibrate(commands: Commands) -> None:
    add_command(
        commands,
        "calibrate",
        run="measure:run_calibrate",
        usage="edgekit calibrate [MODEL | --list] [--share FILE] [--json] | --remove [--json]",
        description=_CALIBRATE_DESCRIPTION,
        epilog=_CALIBRATE_EXAMPLES,
        options={
            "[MODEL]": "a GGUF model on this machine: path, hub id or name",
            **JSON,
            "--list": "list everything that was measured, on every machine",
            "--share FILE": "add an anonymous record of the speed to FILE (-: standard output); sends nothing",
            "--remove": "delete everything that was measured",
        },
    )


_EMBED_DESCRIPTION = """\
Computes embeddings with a GGUF model of any size within a memory budget: weights are read from disk as needed.
Give a few texts, or a file with millions of them; an interrupted job can be continued.
"""
_EMBED_EPILOG = """
MODEL is a GGUF file, a model in Ollama or LM Studio on this machine, or a hub id (org/name:Q8_0).

examples:
  edgekit embed model.gguf "What is a panda?" "A bear of China."
  edgekit embed model.gguf "What is a panda?" --query --json
  edgekit embed model.gguf --input texts.txt --output vectors.npy --budget 200M
  edgekit embed model.gguf --input rows.jsonl --field body --id-field id --output vectors.parquet --skip-bad
  zcat rows.csv.gz | edgekit embed model.gguf --input - --format csv --output - > vectors.jsonl
  edgekit embed model.gguf --plan --budget 100M
  edgekit embed model.gguf --stdio

To continue a job that was interrupted, run the same command again; the result is the same as in one go.

exit codes: 0 done, 1 the output could not be written, 2 usage or a text or row that cannot be embedded, 3 does not
fit in memory, 4 not found or not readable, 5 damaged or unsupported model, 130 interrupted
"""


def add_embed(commands: Commands) -> None:
    parser = add_command(
        commands,
        "embed",
        run="embed:run_embed",
        usage="edgekit embed MODEL [TEXT ...] [--input FILE --output FILE] [--budget SIZE] [options]",
        description=_EMBED_DESCRIPTION,
        epilog=_EMBED_EPILOG + "\n" + ENVIRONMENT,
        options={
            "--json": "print JSON (docs/embed.md)",
            "-q, --quiet": "show no progress and no summary",
            "--plan": "show the memory it would use, and embed nothing",
            "--stdio": "read requests as lines of JSON from standard input (docs/embed.md)",
            "memory and time": {
                "--budget SIZE": "memory budget of the whole process, e.g. 200M (default: as much as is useful, "
                "up to a quarter of the free memory)",
                "--threads N": "number of threads (default: one per core, at most 8)",
                "--engine NAME": "engine to use: edgekit (default) or llama.cpp",
                "--tokenizer-cache FOLDER": "store the tokenizer in this folder, so that the next start is faster and "
                "needs less memory",
                "--max-file SIZE": "refuse models larger than this (default 5 GB)",
            },
            "vectors": {
                "--mode NAME": "encoder (default), or tokens: the mean of the token embeddings, without running the "
                "model",
                "--pooling NAME": "pooling: mean, cls or last (default: as the file states)",
                "--dimensions N": "keep only the first N dimensions of each vector, for Matryoshka models",
                "--no-normalize": "do not scale vectors to length 1",
                "--truncate": "truncate texts that are too long",
                "--max-tokens N": "maximum tokens per text (default 2048, or the model's context)",
                ONE_OF: {
                    "--query": "put the model's own query prefix before each text",
                    "--document": "put the model's own document prefix before each text",
                    "--prefix TEXT": "put this prefix before each text",
                },
            },
            "many texts": {
                "--input FILE": "input file: txt (one text per line), jsonl, csv, tsv (also .gz) or parquet; - for "
                "standard input",
                "--format NAME": "input format: txt, jsonl, csv, tsv or parquet (default: from the file name)",
                "--field NAME": "field or column with the text (default text)",
                "--id-field NAME": "field or column with the id, which is copied to the output",
                "--output FILE": "output file: npy, jsonl or parquet; - for JSON lines on standard output",
                "--batch N": "texts per batch (default auto: by tokens)",
                "--skip-bad": "skip rows that cannot be embedded, and list them (default: stop at the first)",
                ONE_OF: {
                    "--resume": "continue an unfinished job, and fail if there is none (default: continue or start)",
                    "--overwrite": "start over; an existing output is replaced once the new one is complete",
                },
            },
        },
        field="text",
        batch="auto",
    )
    parser.add_argument(
        "models",
        metavar="MODEL [TEXT ...]",
        nargs="+",
        help="the model, then the texts to embed (docs/embed.md)",
    )
    group = parser.add_argument_group("many machines")
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="local",
        help="embed on a Ray cluster, or on local Ray workers; needs --budget, which is per worker",
    )
    add_options(group, {"--workers N": "number of Ray workers (default: one per CPU)"})
    add_options(parser, {**DOWNLOADS, **NETWORK})


_WEB_DESCRIPTION = """\
Opens a web page that shows which models this machine can run and what each one needs, before you download anything.
The REST API is on the same port, under /api/v1, with documentation at /api/docs. Only this machine can reach them,
unless you set --host; then clients need a token.
"""
_WEB_EXAMPLES = """\
examples:
  edgekit web
  edgekit web Qwen/Qwen3-8B-GGUF:Q4_K_M
  edgekit web model.gguf
  edgekit web --models-dir ~/models --offline
  edgekit web --host 0.0.0.0 --port 8421 --no-browser

The server only reads files in --models-dir (and MODEL), and only contacts servers on this machine or in private
networks with --allow-private. Details: docs/web.md.

environment: EDGEKIT_WEB_TOKEN (safer than --token, because other users can see command lines), BROWSER and those below.
"""
_WEB_CODES = """
exit codes: 0 ended by Ctrl-C or SIGTERM, 1 the address could not be printed, 2 usage, port in use, or
edgekit-models[web] is not installed, 4 a file or folder does not exist or cannot be read
"""


def add_web(commands: Commands) -> None:
    add_command(
        commands,
        "web",
        run="web:run_web",
        usage="edgekit web [MODEL] [--port N] [--no-browser] [--models-dir DIR] [options]",
        description=_WEB_DESCRIPTION,
        epilog=_WEB_EXAMPLES + ENVIRONMENT + _WEB_CODES,
        options={
            "[MODEL]": "open the page of this model",
            "--json": "print one line of JSON when the server is ready (docs/web.md)",
            "--no-browser": "print the address instead of opening the browser",
            "server": {
                "--host ADDRESS": "address to listen on (default 127.0.0.1)",
                "--port N": "port to listen on (default 8421, or the next free one; 0 for any free port)",
                "--token TOKEN": "token that clients must send (or EDGEKIT_WEB_TOKEN); a random one is generated if "
                "other machines can reach the port",
                "--qr": "print a QR code of the address for other devices, even if the output is not a terminal",
                "--no-qr": "print no QR code (default: print one in a terminal if other devices can reach the port)",
                "--rate N": "requests per second allowed for one client (default 400)",
            },
            "what it may read": {
                "--models-dir DIR...": "folder whose model files may be opened (repeatable)",
                "--allow-private": "also allow servers on this machine and in private networks",
                **OFFLINE,
                "--timeout SECONDS": "network time limit for one model (default 60)",
                **NO_CACHE,
            },
        },
        host="127.0.0.1",
        json_lines=True,
        timeout=60.0,
    )
