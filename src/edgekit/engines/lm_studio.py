"""LM Studio's settings: as its screen names them, as the JSON it stores, and the part that `lms load` takes.

LM Studio runs models with llama.cpp or MLX: each engine hands in its settings, with the names and keys of LM Studio.
Keys: lmstudio-js packages/lms-kv-config/src/schema.ts @ 6ec11db; flags: lms src/subcommands/load.ts @ 07b7252.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from edgekit.engines.commands import FILE, SETTINGS, Command, Startup

PROGRAM = "lm-studio"
CONTEXT = "llm.load.contextLength"
PARALLEL = "llm.load.numParallelSessions"
OFFLOAD = "llm.load.llama.acceleration.offloadRatio"


class Setting(NamedTuple):
    """One setting."""

    name: str  # on the screen; "": it is not shown there
    key: str
    value: Any
    shown: str = ""  # the value as a person sets it, where that is not the value itself
    is_default: bool = False  # LM Studio has it like this anyway


def ready(
    startup: Startup, settings: Sequence[Setting], *, model: str, notes: Sequence[str] = ()
) -> Iterator[Command]:
    """`model` is the name that LM Studio has for it."""
    listed = "".join(f"{one.name}: {_shown(one)}\n" for one in settings if one.name)
    yield Command(
        program=PROGRAM, name="LM Studio settings", kind=SETTINGS, text=listed, notes=tuple(notes)
    )
    fields = [{"key": one.key, "value": one.value} for one in settings]
    preset = {"operation": {"fields": []}, "load": {"fields": fields}}
    text = json.dumps(preset, indent=2) + "\n"
    yield Command(program=PROGRAM, name="LM Studio preset", kind=FILE, text=text)
    values = {one.key: one.value for one in settings}
    words = ["lms", "load", model, "--context-length", str(values[CONTEXT])]
    ratio = values.get(OFFLOAD)
    if ratio is not None:
        words += ["--gpu", ratio if isinstance(ratio, str) else f"{ratio:g}"]
    words += ["--parallel", str(values[PARALLEL])]
    yield startup.command(PROGRAM, "lms load", words, notes=_load_notes(settings))


def _shown(setting: Setting) -> str:
    if isinstance(setting.value, bool):
        return "on" if setting.value else "off"
    return setting.shown or str(setting.value)


def _load_notes(settings: Sequence[Setting]) -> list[str]:
    """`lms load` has no flags for the other settings."""
    rest = [
        one.name
        for one in settings
        if one.name and one.key not in {CONTEXT, PARALLEL, OFFLOAD} and not one.is_default
    ]
    notes = ["`lms ls` shows the key of the model in LM Studio"]
    if rest:
        notes.append(f"set these first, as defaults of the model in LM Studio: {', '.join(rest)}")
    return notes
