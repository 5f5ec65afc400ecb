"""`--quant NAME` for any engine: the engine's own name for it, and the option that it sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.engines import engine_named, every_engine
from edgekit.engines.row_options import option_of
from edgekit.errors import UsageError


def read_quant(engine: str, name: str) -> str:
    """The name as the engine's own option has it: 'q4_k' -> 'Q4_K_M' for llama.cpp, '4bit' -> 'q4' for MLX.

    Raises UsageError with the names that the engine has.
    """
    one = engine_named(engine)
    found = one.read_quant(name)
    if found is not None:
        return found
    others = [other.name for other in every_engine() if takes(other.name, name)]
    hint = f" ({name[:40]} is for {' and '.join(others)})" if others else ""
    raise UsageError(
        f"{one.title} has no quantisation {name[:40]!r}{hint}; it has {', '.join(one.quant_names())}"
    )


def takes(engine: str, name: str) -> bool:
    """Whether the engine has a quantisation of this name."""
    one = engine_named(engine)
    return bool(one.quant_key) and one.read_quant(name) is not None


def options_with_quant(
    engine: str, options: Mapping[str, Any], quant: str | None
) -> Mapping[str, Any]:
    """Options of a row with the quantisation as the engine's own option, in place of `quant`. Raises UsageError."""
    one = engine_named(engine)
    own = option_of(one, one.quant_key)
    if "quant" in options and own not in options:  # recorded rows of MLX have both
        options = {key: value for key, value in options.items() if key != "quant"}
    if quant is None:
        return options
    value = read_quant(engine, quant)
    if options.get(own, value) != value:
        raise UsageError(f"{quant[:40]} and {own} {options[own]!r:.40} differ: give one")
    return {**options, own: value}
