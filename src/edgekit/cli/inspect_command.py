"""`edgekit inspect MODEL`: parse, call, print."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.inspection import Inspection

_DESCRIPTION = (
    "What a model is, from its header alone: layers, cache cost, context, where its bytes are."
)
_EPILOG = """\
MODEL is any of
  a file or folder          model.gguf, model-00001-of-00003.gguf, ./folder, config.json
  a Hugging Face id         org/name, org/name:Q4_K_M, org/name@revision, hf.co/org/name
  an address                https://huggingface.co/org/name/blob/main/file.gguf, any .gguf URL
  an Ollama or LM Studio    llama3.2:1b, a model's folder name
  a shipped sample          sample:gemma-3-27b, sample:qwen3-30b-a3b

examples:
  edgekit inspect Qwen/Qwen3-8B
  edgekit inspect unsloth/gemma-3-27b-it-GGUF:Q4_K_M --light
  edgekit inspect model.gguf --layers --tensors
  edgekit inspect model.gguf --json | jq .tensor_bytes

environment: HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE, OLLAMA_MODELS, NO_COLOR,
HTTPS_PROXY, SSL_CERT_FILE, EDGEKIT_CACHE (where header bytes are kept) and EDGEKIT_OLLAMA_REGISTRY (a
mirror of Ollama's registry) are honoured.
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "inspect",
        help="what a model is, from its header alone",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="path, hub id, URL or name")
    parser.add_argument("--json", action="store_true", help="for programs (docs/json.md)")
    parser.add_argument("--layers", action="store_true", help="list every layer")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--keys", action="store_true", help="list every key of the header")
    parser.add_argument(
        "--light",
        action="store_true",
        help="stop at the architecture: one ranged request for a remote GGUF, config and index for "
        "safetensors",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="neither use nor keep header bytes on disk"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=120.0,
        help="how long the network may take, all requests together (default 120)",
    )
    parser.add_argument("--offline", action="store_true", help="local files and caches only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """The answer as text."""
    from edgekit.header.types import Depth
    from edgekit.inspection import inspect_model
    from edgekit.source.types import Reach

    reach = Reach(
        network=not arguments.offline,
        cache=not arguments.no_cache,
        total_timeout_s=arguments.timeout,
        progress=_show_progress if _is_terminal(sys.stderr) and not arguments.json else None,
    )
    depth = Depth.ARCHITECTURE if arguments.light and not arguments.tensors else Depth.TENSORS
    try:
        found = inspect_model(arguments.model, depth=depth, reach=reach)
    finally:
        if reach.progress is not None:
            _show_progress("")
    return _render(found, arguments)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to a day")
    return seconds


def _render(found: Inspection, arguments: argparse.Namespace) -> str:
    if arguments.json:
        from edgekit.report.as_json import inspection_json, json_text

        answer = inspection_json(
            found, tensors=arguments.tensors, layers=arguments.layers, keys=arguments.keys
        )
        return json_text(answer)
    return _render_text(found, arguments)


def _render_text(found: Inspection, arguments: argparse.Namespace) -> str:
    from edgekit.report import as_text

    parts = [as_text.inspection_text(found, bold=_is_terminal(sys.stdout))]
    if arguments.layers and found.geometry is not None:
        parts.append(as_text.layers_text(found.geometry))
    if arguments.tensors:
        parts.append(as_text.tensors_text(found))
    if arguments.keys:
        parts.append(as_text.keys_text(found))
    return "\n".join(parts)


def _is_terminal(stream: object) -> bool:
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return not plain and bool(getattr(stream, "isatty", lambda: False)())


def _show_progress(line: str) -> None:
    sys.stderr.write(f"\r\x1b[K{line[:100]}")
    sys.stderr.flush()
