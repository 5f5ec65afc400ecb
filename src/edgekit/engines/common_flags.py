"""Flags of every engine, and which flags of the engines a command has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgekit.engines.flags import Flag, whole

if TYPE_CHECKING:  # only to name types: --help must be instant
    import argparse

PLANNED = ("llama.cpp", "vllm", "mlx")  # the built-in engine leaves a plan nothing to choose
# What the machine says, not the caller, wherever a machine is checked.
OF_THE_MACHINE = frozenset({"cpu", "device_memory", "gpu", "gpu_memory"})
# What a plan chooses itself, or leaves to another command.
NOT_PLANNED = {
    "parallel": "-np: use --users N, which gives each user a full context",
    "unified": "-kvu: with --users every user gets a full context",
    "mmproj": "--mmproj: use edgekit check MODEL --mmproj FILE, which counts the projector",
    "lora": "--lora: use edgekit check, which counts adapters",
    "draft_model": "-md: it looks for a draft model itself; use edgekit check for one you choose",
    "spec_type": "--spec-type: it looks for a draft model itself (--no-drafter turns that off)",
    "max_num_seqs": "--max-num-seqs: use --users N for N requests at the same time",
}
# What engines and the programs around them call the context: all of them are accepted.
CONTEXT_NAMES = (
    "--ctx", "--context", "--context-len", "--context-length", "--max-model-len", "--n-ctx",
)  # fmt: skip
CONTEXT = Flag(
    ("-c", "--ctx-size"),
    "context",
    "context in tokens: 8192, 32k (default: the native context); also --ctx, --max-model-len",
    "N",
    whole(),
    aliases=CONTEXT_NAMES,
)
QUANT = Flag(
    ("--quant",),
    "quant",
    "quantisation of the weights: Q4_K_M, Q8_0 (llama.cpp), 4bit (MLX), fp8 (vLLM)",
    "NAME",
)
QUANT_KEYS = {"llama.cpp": "mix", "vllm": "quantization", "mlx": "quantize"}


def given_flags(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Engine -> its flags that were given, as they were typed."""
    found: dict[str, dict[str, Any]] = {}
    for dest, text in vars(arguments).items():
        engine, colon, key = dest.partition(":")
        if colon:
            found.setdefault(engine, {})[key] = text
    return found
