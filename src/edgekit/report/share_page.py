"""An answer as one HTML file: it needs no network, no script and no other file, and can be sent to anybody."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgekit.app.check import Check
from edgekit.engines.commands import COMMAND, FILE
from edgekit.errors import printable
from edgekit.report.check import assumed_of, notes_on_screen
from edgekit.report.picture import DARK, ICON, LIGHT, TOO_MUCH, Theme, picture_svg, verdict_icon
from edgekit.report.shared_answer import PART_NAMES, Figure, SharedAnswer, SharedMemory, Tone
from edgekit.report.svg_text import escaped
from edgekit.units import format_bytes

Clean = Callable[[str], str]

MOST_FILE_LINES = 12  # of a file that is shown among the commands
_FOOTER = "Made by EdgeKit, which answers before you download: will this model run on my machine, and how?"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """\
:root { color-scheme: light dark; LIGHT_COLOURS }
@media (prefers-color-scheme: dark) { :root { DARK_COLOURS } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 2.5rem) 4rem; }
header { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; justify-content: space-between; align-items: center; }
header p { margin: 0; }
.brand { display: flex; align-items: center; gap: .6rem; font-weight: 700; font-size: 1.1rem; }
.muted, dt, dd small, th { color: var(--muted); }
h1 { font-size: clamp(2rem, 6vw, 3.2rem); line-height: 1.1; letter-spacing: -.02em; margin: 1.6rem 0 .3rem;
  overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
.verdict { display: flex; gap: 1.1rem; align-items: flex-start; margin: 1.2rem 0 1.6rem; padding: 1.1rem 1.3rem;
  border-radius: 14px; background: var(--tone-ground); }
.verdict svg { flex: none; }
.verdict div { flex: 1; min-width: 0; }
.verdict p { margin: 0; }
.verdict .row { display: flex; flex-wrap: wrap; gap: 0 1rem; justify-content: space-between; align-items: baseline; }
.verdict strong { font-size: 1.5rem; color: var(--tone); }
.verdict .sentence { font-size: 1.15rem; margin-top: .2rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(13rem, 45%), 1fr)); gap: 1.2rem; margin: 0; }
dd { margin: 0; }
dd b { font-size: 2.3rem; line-height: 1.15; letter-spacing: -.02em; }
dd small { display: block; font-size: .95rem; }
.memory { margin: 0 0 1.1rem; }
.memory p { display: flex; justify-content: space-between; margin: 0 0 .35rem; }
.bar { position: relative; display: flex; gap: 2px; height: 1.4rem; background: var(--track); border-radius: 5px; }
.bar i { display: block; min-width: 1px; border-radius: 3px; }
.bar u { position: absolute; top: -5px; bottom: -5px; width: 3px; margin-left: -1px; background: var(--ink);
  box-shadow: 0 0 0 2px var(--ground); border-radius: 2px; }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; padding: 0; list-style: none; color: var(--muted); }
.key i { display: inline-block; width: .85em; height: .85em; margin-right: .45em; border-radius: 3px; }
.key i.mark { width: 3px; height: 1.1em; background: var(--ink); vertical-align: -.15em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .8rem .4rem 0; border-top: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; font-weight: 400; }
thead th { border: 0; }
tfoot td, tfoot th { font-weight: 700; color: var(--ink); }
h3 { font-size: 1rem; margin: 1.1rem 0 .3rem; }
pre { margin: 0; padding: .8rem 1rem; background: var(--track); border-radius: 8px; overflow-wrap: anywhere;
  white-space: pre-wrap; font: .95rem/1.5 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; user-select: all; }
img { display: block; width: 100%; height: auto; border: 1px solid var(--line); border-radius: 10px; }
a { color: var(--accent); }
details { margin-top: 1rem; }
summary { color: var(--accent); cursor: pointer; }
footer { margin-top: 3rem; color: var(--muted); }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """How to get the same answer from another EdgeKit."""

    command: str  # edgekit check ...
    path: str  # of the page of `edgekit web`: /model?ref=...
    notes: tuple[str, ...] = ()  # what differs there


def share_html(
    check: Check, answer: SharedAnswer, reproduction: Reproduction, *, clean: Clean = printable
) -> str:
    """The file. `clean` removes local paths from texts."""

    def text(words: str) -> str:
        return escaped(clean(words))

    title = f"{answer.title} on {answer.hardware}: {answer.verdict}"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
            f"<title>{text(title)} - EdgeKit</title>",
            *_meta_tags(text(title), text(answer.sentence)),
            f"<style>{_style(answer.tone)}</style></head>",
            "<body><main>",
            f'<header><p class="brand">{_icon(32)}EdgeKit</p>',
            f'<p class="muted">{text(answer.engine)} · {answer.date_words}</p></header>',
            f'<h1>{text(answer.title)}</h1><p class="muted">{text(answer.details)}</p>',
            _verdict(answer, text),
            *_figures(answer.figures, text),
            *_commands(check, text),
            *_memory(answer.memories, text),
            *_changes(check, text),
            *_reproduction(reproduction, text),
            *_picture(answer),
            f"<footer><p>{_FOOTER}</p></footer>",
            "</main></body></html>\n",
        ]
    )


def _meta_tags(title: str, sentence: str) -> Iterator[str]:
    """What chats and social sites show for a link to the file (https://ogp.me)."""
    yield f'<meta name="description" content="{sentence}">'
    rows = {"type": "website", "site_name": "EdgeKit", "title": title, "description": sentence}
    for name, content in rows.items():
        yield f'<meta property="og:{name}" content="{content}">'
    yield '<meta name="twitter:card" content="summary">'


def _style(tone: Tone) -> str:
    def variables(theme: Theme) -> str:
        ink, ground = theme.tones[tone]
        colours = {
            "ground": theme.ground, "ink": theme.ink, "muted": theme.muted, "line": theme.line,
            "track": theme.track, "accent": theme.parts[0], "tone": ink, "tone-ground": ground,
            "bad": theme.tones[Tone.BAD][0],
            **{f"part{number}": colour for number, colour in enumerate(theme.parts)},
        }  # fmt: skip
        return " ".join(f"--{name}: {colour};" for name, colour in colours.items())

    style = _STYLE.replace("LIGHT_COLOURS", variables(LIGHT))
    return style.replace("DARK_COLOURS", variables(DARK))


def _icon(pixels: int) -> str:
    return f'<svg width="{pixels}" height="{pixels}" viewBox="0 0 32 32" aria-hidden="true">{ICON}</svg>'


def _verdict(answer: SharedAnswer, text: Clean) -> str:
    icon = verdict_icon(answer.tone, 24, 24, "var(--tone)", "var(--tone-ground)")
    return (
        f'<section class="verdict"><svg width="48" height="48" aria-hidden="true">{icon}</svg><div>'
        f'<p class="row"><strong>{text(answer.verdict)}</strong><b>{text(answer.machine)}</b></p>'
        f'<p class="sentence">{text(answer.sentence)}</p></div></section>'
    )


def _figures(figures: Sequence[Figure], text: Clean) -> Iterator[str]:
    yield "<dl>"
    for figure in figures:
        yield (
            f"<div><dt>{text(figure.label)}</dt><dd><b>{text(figure.value)}</b> {text(figure.unit)}"
            f"<small>{text(figure.note)}</small></dd></div>"
        )
    yield "</dl>"


def _commands(check: Check, text: Clean) -> Iterator[str]:
    """The commands of every program, the usual one first. A click selects one."""
    if not check.result.can_load:
        return
    ready = [
        command
        for command in check.ready
        if command.kind == COMMAND
        or (command.kind == FILE and command.text.count("\n") <= MOST_FILE_LINES)
    ]
    parts = [_command(command.name, command.text, command.notes, text) for command in ready]
    if not parts and check.bill.command:
        parts = [_command("Command", check.bill.command, (), text)]
    if not parts:
        return
    yield f"<section><h2>Run it</h2>{parts[0]}"
    if len(parts) > 1:
        yield f"<details><summary>Other programs</summary>{''.join(parts[1:])}</details>"
    yield "</section>"


def _command(name: str, command: str, notes: Sequence[str], text: Clean) -> str:
    below = "".join(f'<p class="muted">{text(note)}</p>' for note in notes)
    return f"<h3>{text(name)}</h3>{_copied(command, text)}{below}"


def _copied(command: str, text: Clean) -> str:
    """A block of which a click selects everything. Line ends stay, other control characters do not."""
    lines = (text(line) for line in command.strip().split("\n"))
    return f"<pre>{chr(10).join(lines)}</pre>"


def _memory(shown: Sequence[SharedMemory], text: Clean) -> Iterator[str]:
    if not shown:
        return
    yield "<section><h2>Memory</h2>"
    for memory in shown:
        yield (
            f'<div class="memory"><p><span>{text(memory.name)}</span><b>{text(memory.sizes)}</b></p>'
            f'<div class="bar" aria-hidden="true">{"".join(_bar(memory))}</div></div>'
        )
    names = [
        name
        for name in PART_NAMES.values()
        if any(name == part for memory in shown for part, _ in memory.parts)
    ]
    colour_of = _part_colours()
    keys = [(name, f'<i style="background:{colour_of[name]}"></i>') for name in names]
    if any(memory.is_too_small for memory in shown):
        keys.append((TOO_MUCH, '<i style="background:var(--bad)"></i>'))
    keys.append(("usable", '<i class="mark"></i>'))
    yield f'<ul class="key">{"".join(f"<li>{swatch}{name}</li>" for name, swatch in keys)}</ul>'
    yield '<div class="scroll"><table><thead><tr><th></th>'
    yield "".join(f'<th scope="col">{text(memory.name)}</th>' for memory in shown)
    yield "</tr></thead><tbody>"
    for name in names:
        sizes = [dict(memory.parts).get(name, 0) for memory in shown]
        cells = "".join(f"<td>{format_bytes(size) if size else '-'}</td>" for size in sizes)
        yield f'<tr><th scope="row">{name}</th>{cells}</tr>'
    yield "</tbody><tfoot>"
    for name, sizes in (
        ("total", [memory.required_bytes for memory in shown]),
        ("usable", [memory.usable_bytes for memory in shown]),
    ):
        cells = "".join(f"<td>{format_bytes(size)}</td>" for size in sizes)
        yield f'<tr><th scope="row">{name}</th>{cells}</tr>'
    yield "</tfoot></table></div></section>"


def _part_colours() -> dict[str, str]:
    return {name: f"var(--part{number})" for number, name in enumerate(PART_NAMES.values())}


def _bar(memory: SharedMemory) -> Iterator[str]:
    """The parts up to the usable memory, the excess, and the mark."""
    whole = max(memory.required_bytes, memory.whole_bytes, memory.usable_bytes, 1)
    colour_of, total = _part_colours(), sum(size for _, size in memory.parts) or 1
    room = float(memory.usable_bytes)
    for name, size in memory.parts:
        shown = min(memory.required_bytes * size / total, room)
        room -= shown
        if shown > 0:
            yield f'<i style="width:{100 * shown / whole:.3f}%;background:{colour_of[name]}"></i>'
    if memory.is_too_small:
        over = memory.required_bytes - memory.usable_bytes
        yield f'<i style="width:{100 * over / whole:.3f}%;background:var(--bad)"></i>'
    yield f'<u style="left:{100 * memory.usable_bytes / whole:.3f}%"></u>'


def _changes(check: Check, text: Clean) -> Iterator[str]:
    """What would change the answer, and what to know about it."""
    lists = (
        ("To make it fit" if check.result.failed else "Also possible",
         [change.told for change in check.changes]),
        ("Notes", [
            *check.bill.notes,
            *notes_on_screen(check.bill.estimate),
            *assumed_of(check.result.machine, check.result),
        ]),
    )  # fmt: skip
    for title, rows in lists:
        if rows:
            items = "".join(f"<li>{text(row)}</li>" for row in dict.fromkeys(rows))
            yield f"<section><h2>{title}</h2><ul>{items}</ul></section>"


def _reproduction(reproduction: Reproduction, text: Clean) -> Iterator[str]:
    yield "<section><h2>Check it yourself</h2><h3>In a terminal</h3>"
    yield _copied(reproduction.command, text)
    yield "<h3>On the page of any EdgeKit (edgekit web), after its address</h3>"
    yield f"<pre>{escaped(reproduction.path)}</pre>"
    for note in reproduction.notes:
        yield f'<p class="muted">{text(note)}</p>'
    yield "</section>"


def _picture(answer: SharedAnswer) -> Iterator[str]:
    """The picture in both themes, as an image that the reader can save."""
    light, dark = (
        base64.b64encode(picture_svg(answer, theme).encode()).decode()
        for theme in ("light", "dark")
    )
    data = "data:image/svg+xml;base64,"
    yield "<section><h2>As a picture</h2><picture>"
    yield f'<source media="(prefers-color-scheme: dark)" srcset="{data}{dark}">'
    yield f'<img src="{data}{light}" width="1200" height="630" alt="{escaped(answer.description)}">'
    yield "</picture></section>"
