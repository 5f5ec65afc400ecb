"""README.md, docs/ and docs/data/setups.tsv: examples print what they show, links and keys exist."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.documented import documented
from tests.programs import PROGRAMS
from tests.unit.report.verdicts import (
    RECORDED,
    TOO_LARGE,
    card,
    check_from_lines,
    mac,
    machine,
    recorded,
)

from edgekit.app.check import Unanswered
from edgekit.bill.types import Drafter, Load, Speculation, Speed
from edgekit.bill.waits import first_token
from edgekit.cli import main
from edgekit.engines.commands import Command
from edgekit.errors import HeaderError
from edgekit.machine.types import HostMemory, MemoryLimit, Process
from edgekit.report.check import check_json
from edgekit.report.hardware import devices_json, hardware_json
from edgekit.report.tables import checks_json
from edgekit.units import GIB

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLE = re.compile(r"`(edgekit [^`\n]+)`\n\n```text\n(.*?)```", re.DOTALL)
PAGES = [
    (ROOT / page).read_text(encoding="utf-8")
    for page in (
        "README.md",
        "docs/check.md",
        "docs/estimate.md",
        "docs/hardware.md",
        "docs/plan.md",
        "docs/share.md",
        "docs/together.md",
    )
]
EXAMPLES = [example for page in PAGES for example in EXAMPLE.findall(page)]
SETUPS = [
    tuple(line.split("\t")[:2])
    for line in (DOCS / "data" / "setups.tsv").read_text(encoding="utf-8").splitlines()[1:]
]

LIMIT = MemoryLimit(name="a file", limit_bytes=8 * GIB, used_bytes=GIB)
HERE = machine(
    card("T4", 16, users=(Process(pid=1),)),
    host=HostMemory(total_bytes=16 * GIB, free_bytes=9 * GIB, limits=(LIMIT,)),
)


@pytest.fixture
def as_in_docs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment of tools/doc_examples.py."""
    monkeypatch.chdir(tmp_path)  # share writes files
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("EDGEKIT_LLAMA_VERSION", "0.6")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.skipif(sys.platform == "win32", reason="another reserve")
@pytest.mark.usefixtures("as_in_docs")
@pytest.mark.parametrize(("command", "printed"), EXAMPLES)
def test_examples_print_what_they_show(
    capsys: pytest.CaptureFixture[str], command: str, printed: str
) -> None:
    main(shlex.split(command)[1:])
    assert capsys.readouterr().out == printed


@pytest.mark.skipif(sys.platform == "win32", reason="another reserve")
@pytest.mark.usefixtures("as_in_docs")
@pytest.mark.parametrize(("command", "headline"), SETUPS)
def test_setups_have_the_headlines_of_the_table(
    capsys: pytest.CaptureFixture[str], command: str, headline: str
) -> None:
    main([*shlex.split(command)[1:], "--quiet"])
    assert " ".join(capsys.readouterr().out.split()) == headline


def test_number_of_examples_and_setups() -> None:
    assert len(EXAMPLES) == 16
    assert len(SETUPS) == 20


def test_readme_is_short_and_shows_the_three_main_commands() -> None:
    readme = PAGES[0]
    assert len(readme.encode()) < 12_000
    assert [command.split()[1] for command, _ in EXAMPLE.findall(readme)] == [
        "recommend",
        "check",
        "plan",
    ]


def keys_of(value: Any, *, without: frozenset[str]) -> Iterator[str]:
    """Every key, except those of objects that are documented by themselves."""
    match value:
        case dict():
            for name, item in value.items():
                yield name
                if name not in without:
                    yield from keys_of(item, without=without)
        case list():
            for item in value:
                yield from keys_of(item, without=without)


def test_json_tsv_names_every_key() -> None:
    missing = Unanswered(reference="x", engine=None, error=HeaderError("x"))
    documents = [check_json(recorded(name)) for name in RECORDED]
    documents.append(check_json(check_from_lines(first_token=first_token((900.0, 3600.0), 1000))))
    speed = Speed(decode=(24.0, 60.0), prefill=None, because="")
    with_users = check_from_lines(speed=speed, speed_at=lambda _: speed, load=Load(sequences=8))
    drafting = Speculation(drafter=Drafter(name="x"), acceptance=0.7, draft_tokens=3, speed=speed)
    documents += [
        check_json(with_users),
        check_json(check_from_lines(speed=speed, speculation=drafting)),
        check_json(
            replace(with_users, ready=(Command(program="x", name="X", kind="command", text="x"),))
        ),
    ]
    documents += [
        checks_json([TOO_LARGE, missing]),
        hardware_json(HERE, PROGRAMS),
        hardware_json(mac(36)),
    ]
    documents += [devices_json()]
    keys = set(keys_of(documents, without=frozenset({"estimate", "engines"})))
    assert keys == documented("check", "check, several", "hardware", "hardware --devices")


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SOURCES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", SOURCES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_an_existing_file_and_heading(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_pages_named_in_messages_exist() -> None:
    sources = sorted((ROOT / "src" / "edgekit").rglob("*.py"))
    text = "\n".join(source.read_text(encoding="utf-8") for source in sources)
    named = set(re.findall(r"\((docs/[\w./-]+\.md)\)", text))
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]
