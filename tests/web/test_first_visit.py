"""A new user, in a real browser, from the home page to a shared answer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.web.conftest import MakeVisit
from tests.web.first_visit import FirstVisit

from edgekit.cli import main

MOST_CLICKS = 7


def test_new_user_finds_a_model_copies_its_command_and_shares_it(
    make_visit: MakeVisit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    visit = FirstVisit(make_visit().open("/"))
    visit.walk(tmp_path)
    assert visit.clicks <= MOST_CLICKS
    machine = ("--device", "RTX 3060", "--ram", "32G")
    assert main(["recommend", *machine, "--limit", "3", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["suggestions"][0]
    assert visit.model == best["entry"]["title"]
    main(["plan", best["id"], *machine, "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert visit.command == plan["commands"][0]["text"]
    assert visit.command.startswith("llama-server -hf ")
    query = parse_qs(urlsplit(visit.link).query)
    assert query["device"] == ["RTX 3060"]
    assert query["ram"] == ["32G"]
    png = visit.picture.read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == (1200, 630)
