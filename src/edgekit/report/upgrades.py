"""What a larger GPU would give, as a table with bars and as JSON (docs/json.md)."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.app.upgrades import Upgrades, UpgradeStep
from edgekit.errors import printable
from edgekit.index.titles import title_of
from edgekit.index.types import Entry, ModelPurpose
from edgekit.report.hardware import machine_json
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.text import PLAIN, Screen, Section, clamp_width, render, table

_MIN_NAMES = 24  # columns for the gained models; if there are fewer, they are left out
_BAR_CELLS, _MIN_BAR_CELLS = 20, 8
_WIDE, _MIN_WIDTH = 60, 40  # columns for a long bar, and for one at all
_NOW = "<- now"


def upgrades_text(answer: Upgrades, screen: Screen = PLAIN) -> str:
    """The screen of `hardware --upgrades`: one row per size, with a bar for the number of models."""
    sections: list[Section] = [
        ("", lambda screen: list(_lines(answer, screen))),
        ("Note", list(_notes(answer))),
    ]
    return render(headline(answer), sections, screen)


def headline(answer: Upgrades) -> str:
    """'RTX 4070 holds 73 of 151 chat models; the next size, 16 GB, holds 75'."""
    now = next((step for step in answer.steps if step.is_now), None)
    larger = [step for step in answer.steps if now is None or step.vram_bytes > now.vram_bytes]
    next_step = next((step for step in larger if now is None or step.count > now.count), None)
    models = f"{answer.models} {task_words(answer.task)}"
    if now is None:
        start = f"{printable(answer.machine.name)} runs none of {models} fully on a GPU"
    else:
        is_unified = any(device.unified for device in answer.machine.devices)
        memory = "unified" if is_unified else "GPU"
        start = f"{label(now)} of {memory} memory holds {now.count} of {models}"
    if next_step is None:
        return start
    return f"{start}; {label(next_step)} would hold {next_step.count}"


def task_words(task: ModelPurpose) -> str:
    return "embedding models" if task is ModelPurpose.EMBEDDING else f"models for {task.value}"


def label(step: UpgradeStep) -> str:
    """'16 GB', as on the box."""
    return f"{step.size.size_gb} GB"


def _lines(answer: Upgrades, screen: Screen) -> Iterator[str]:
    """Size, bar, number of models, and the best gained models as far as the width allows."""
    width, glyphs = clamp_width(screen.width), screen.glyphs
    most = max((step.count for step in answer.steps), default=0) or 1
    if width < _MIN_WIDTH:
        rows = [(label(step), f"{step.count}", "*" if step.is_now else "") for step in answer.steps]
        yield from table(("memory", "models", ""), rows, left={2})
        return
    cells = _BAR_CELLS if width >= _WIDE else _MIN_BAR_CELLS
    bars = []
    for step in answer.steps:
        full = -(-step.count * cells // most)
        drawn = (glyphs.parts[0] * full).ljust(cells, glyphs.free)
        bars.append((label(step), drawn, f"{step.count}", _NOW if step.is_now else ""))
    drawn_rows = table(("memory", "", "models", ""), bars, left={1, 3})
    used = max(map(len, drawn_rows)) + 2
    room = width - used
    if room < _MIN_NAMES:
        yield from drawn_rows
        return
    texts = ["gained", *(_names(step.gained, room) for step in answer.steps)]
    for row, text in zip(drawn_rows, texts, strict=True):
        yield f"{row:<{used}}{text}".rstrip()


def _names(entries: tuple[Entry, ...], width: int) -> str:
    """As many ids as fit, the best first."""
    text = ""
    for entry in entries:
        longer = f"{text}, {printable(entry.id)}" if text else printable(entry.id)
        if len(longer) > width:
            break
        text = longer
    return text


def _notes(answer: Upgrades) -> Iterator[str]:
    yield (
        f"counted: models that run fully on the GPU with {answer.engine}, at about 4 bits per weight and with a "
        "context of 16K or more"
    )
    example = next((step for step in answer.steps if not step.is_now and step.size.devices), None)
    now = next((step for step in answer.steps if step.is_now), None)
    larger = [step for step in answer.steps if now is None or step.vram_bytes > now.vram_bytes]
    gains = [step for step in larger if step.gained] or ([example] if example else [])
    for step in gains[:1]:
        yield f"{label(step)}: {', '.join(map(printable, step.size.devices))}"
    yield from answer.notes


def upgrades_json(answer: Upgrades) -> Json:
    return {
        "schema": SCHEMA,
        "task": answer.task.value,
        **fields(answer, "engine now_bytes"),
        "machine": machine_json(answer.machine),
        "steps": [
            {
                **fields(step, "vram_bytes"),
                "label": label(step),
                **fields(step, "devices=size.devices count"),
                "gained": [
                    {
                        **fields(entry, "id"),
                        "title": title_of(entry),
                        **fields(entry, "parameters"),
                        "quality": round(answer.quality(entry).value, 1),
                    }
                    for entry in step.gained
                ],
                **fields(step, "is_now"),
            }
            for step in answer.steps
        ],
        **fields(answer, "models notes"),
    }
