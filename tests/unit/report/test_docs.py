"""What docs/check.md, docs/hardware.md and docs/json.md say is what the commands print."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report.verdicts import RECORDED, TOO_LARGE, card, mac, machine, recorded

from edgekit.cli import main
from edgekit.errors import HeaderError
from edgekit.hardware.types import HostMemory, MemoryLimit, Process
from edgekit.report.check import Unanswered
from edgekit.report.check_json import check_json, checks_json
from edgekit.report.hardware_json import devices_json, hardware_json
from edgekit.units import GIB

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = re.compile(r"`(edgekit [^`\n]+)`\n\n```text\n(.*?)```", re.DOTALL)
EXAMPLES = [
    found
    for page in ("check.md", "hardware.md", "plan.md")
    for found in EXAMPLE.findall((DOCS / page).read_text(encoding="utf-8"))
]

LIMIT = MemoryLimit(name="a file", limit_bytes=8 * GIB, used_bytes=GIB)
HERE = machine(
    card("T4", 16, users=(Process(pid=1),)),
    host=HostMemory(total_bytes=16 * GIB, free_bytes=9 * GIB, limits=(LIMIT,)),
)


@pytest.mark.skipif(sys.platform == "win32", reason="another reserve")
@pytest.mark.parametrize(("command", "printed"), EXAMPLES)
def test_examples_are_real(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, printed: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv(
        "EDGEKIT_LLAMA_VERSION", "0.6"
    )  # what is newest, as tools/doc_examples.py has it
    main(shlex.split(command)[1:])
    assert capsys.readouterr().out == printed


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 7


def _names(value: Any, *, without: frozenset[str]) -> Iterator[str]:
    """Every name, but for those inside of what has names of its own."""
    match value:
        case dict():
            for name, one in value.items():
                yield name
                if name not in without:
                    yield from _names(one, without=without)
        case list():
            for one in value:
                yield from _names(one, without=without)


def test_json_documentation_names_every_key() -> None:
    page = (
        (DOCS / "json.md")
        .read_text(encoding="utf-8")
        .partition("# `edgekit check --json`")[2]
        .partition("# `edgekit plan --json`")[0]
    )
    documented = set(re.findall(r"`([a-z_]+)`", page))
    missing = Unanswered(reference="x", engine=None, error=HeaderError("x"))
    told = [check_json(recorded(name)) for name in RECORDED]
    told += [checks_json([TOO_LARGE, missing]), hardware_json(HERE), hardware_json(mac(36))]
    told += [devices_json()]
    named = set(_names(told, without=frozenset({"estimate", "engines"})))
    assert named == documented
