"""`edgekit plan` against a hub: a repository of several quantisations, and one that cannot be reached."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.hub import nginx_hub
from tests.hub.nginx_hub import Hub
from tests.hub.test_check import running
from tests.recorded import header_bytes, models, padded
from tests.unit.plan.machines import cards, cpu
from tests.unit.plan.wishes import gguf, is_within, rated

from edgekit.basis import Basis
from edgekit.cli import main
from edgekit.errors import RemoteInspectError
from edgekit.memory.types import Load
from edgekit.plan.planned import Lever, Plan
from edgekit.planning import Wanted, plan_model, wish_of
from edgekit.resolver import resolve_model
from edgekit.source.types import Reach

REPOSITORY = "acme/tiny-GGUF"
QUANTS = ("Q8_0", "Q4_K_M")


def recorded(quant: str) -> tuple[bytes, int]:
    """The header of llama-3.1-8b and the bytes behind it."""
    fact = next(m for m in models() if (m["model"], m["quant"]) == ("llama-3.1-8b", quant))
    raw = header_bytes(fact["header_without_vocabulary"])
    return raw.ljust(padded(len(raw)), b"\0"), fact["data_section_bytes"]


def fill(root: Path) -> dict[str, tuple[str, int]]:
    """nginx_hub's own files, and in one repository real headers in front of holes."""
    linked = _BUILD(root)
    listing = root / "hub/api/models" / REPOSITORY / "tree/main/page.json"
    files = [one for one in json.loads(listing.read_text()) if "tiny-Q" not in one["path"]]
    for quant in QUANTS:
        raw, weights = recorded(quant)
        name = f"tiny-{quant}.gguf"
        path = root / "cdn" / REPOSITORY / name
        path.write_bytes(raw)
        os.truncate(path, len(raw) + weights)
        for key in [key for key in linked if key.endswith(f"/{name}") and REPOSITORY in key]:
            linked[key] = linked[key][0], len(raw) + weights
            digest = linked[key][0]
        lfs = {"oid": digest, "size": len(raw) + weights, "pointerSize": 134}
        files.append({"type": "file", "path": name, "size": len(raw) + weights, "lfs": lfs})
    listing.write_text(json.dumps(files))
    return linked


_BUILD = nginx_hub.build


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nginx_hub, "build", fill)
        with running(tmp_path_factory.mktemp("nginx")) as (hub, _):
            yield hub


@pytest.fixture(autouse=True)
def _hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub cache"))


def plan(wanted: Wanted, reach: Reach, name: str = REPOSITORY) -> Plan:
    return plan_model(resolve_model(name, reach=reach), wanted, reach=reach)


def files_read(hub: Hub) -> set[str]:
    return {match[0] for line in hub.log("cdn") for match in re.findall(r"(tiny-Q\w+)(\.gguf)", line)}  # fmt: skip


# --- which file of a repository


def test_the_files_there_are_are_the_choices(hub: Hub, reach: Reach) -> None:
    named = resolve_model(REPOSITORY, reach=reach)
    variants = wish_of(named, Wanted(machine=cpu(16))).variants
    assert {one.reference for one in variants} >= {f"{REPOSITORY}:Q8_0"}
    assert all(one.reference.startswith(REPOSITORY) for one in variants)
    assert not {"Q6_K", "Q2_K"} & {one.name for one in variants}  # nobody has them
    assert files_read(hub) == {"tiny-Q4_K_M"}  # the usual one is looked at first


# Q8_0: 7.95 GiB of weights, 131,072 tokens at q8_0: 8.5. 48 GiB of a quick card hold both.
@pytest.mark.usefixtures("hub")
def test_quant_chooses_the_file_of_a_repository(reach: Reach) -> None:
    for quant in QUANTS:
        found = resolve_model(REPOSITORY, reach=reach, quant=quant.lower())
        assert found.files is not None
        assert found.files.weights[0].name == f"tiny-{quant}.gguf"
        assert found.quant is None
    other = resolve_model(REPOSITORY, reach=reach, quant="Q6_K")
    assert other.quant == "Q6_K"  # no such file: as if it were quantised so


@pytest.mark.parametrize(
    ("machine", "quant"),
    [(rated(cards(48), card=1000), "Q8_0"), (rated(cpu(16)), "Q4_K_M"), (cards(48), "Q4_K_M")],
    ids=["room and speed", "too slow", "speed not known"],
)
def test_the_chosen_file_is_read_itself(hub: Hub, reach: Reach, machine: Any, quant: str) -> None:
    found = plan(Wanted(machine=machine), reach)
    assert found.fits
    assert is_within(found)
    assert found.variant.reference.startswith(REPOSITORY)
    assert found.variant.model.header.tensor_bytes == gguf("llama-3.1-8b", quant).header.tensor_bytes  # fmt: skip
    assert dict(found.variant.changes) == {}  # the file, not as if
    assert f"tiny-{quant}" in files_read(hub)
    assert found.result.way.setup.mix is None


def test_the_plan_is_exact_for_that_file(hub: Hub, reach: Reach) -> None:
    found = plan(Wanted(machine=rated(cards(48), card=1000), load=Load(context_tokens=16_384)), reach)  # fmt: skip
    from edgekit.engine.llamacpp import estimate

    own = estimate(gguf("llama-3.1-8b", "Q8_0"), found.load, found.result.way.setup)
    assert own.total_bytes == found.result.estimate.total_bytes
    caches = [line.basis for line in found.result.estimate.lines if line.layer is not None]
    assert set(caches) == {Basis.EXACT}
    decision = found.decision(Lever.WEIGHTS)
    assert decision is not None
    assert decision.value == "Q8_0"


def test_a_file_that_was_named_stays(hub: Hub, reach: Reach) -> None:
    found = plan(Wanted(machine=rated(cards(48), card=1000)), reach, f"{REPOSITORY}:Q4_K_M")
    assert found.result.way.setup.mix is None
    assert files_read(hub) == {"tiny-Q4_K_M"}


def test_nothing_of_it_fits(hub: Hub, reach: Reach) -> None:
    found = plan(Wanted(machine=cpu(3)), reach)
    assert not found.fits
    assert found.to_fit


def test_the_commands_name_the_chosen_file(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", REPOSITORY, "--device", "RTX 6000 Ada", "--ram", "64G", "-c", "16k", "--for", "llama-server"])  # fmt: skip
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert f"-hf {REPOSITORY}:Q8_0" in out


# --- a hub that is not there


def test_a_known_repository_is_taken_from_the_catalog(
    reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    named = resolve_model("Qwen/Qwen3-8B", reach=replace(reach, total_timeout_s=2.0))
    assert named.entry is not None
    assert named.entry.id == "qwen3-8b"
    assert "could not be read" in named.notes[0]
    assert plan_model(named, Wanted(machine=cpu(16)), reach=reach).fits


def test_a_hub_that_goes_away_in_between(
    hub: Hub, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing was read, and the header of the chosen file cannot be: no plan for a file that nobody saw."""
    named = resolve_model(REPOSITORY, reach=reach)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    wanted = Wanted(machine=rated(cards(48), card=1000))
    with pytest.raises(RemoteInspectError, match="cannot reach"):
        plan_model(named, wanted, reach=replace(reach, total_timeout_s=2.0))


def test_a_repository_that_is_not_there_is_not_the_catalogs(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hub was reached, and it said no: whoever typed the name hears of it."""
    code = main(["plan", "Qwen/Qwen3-8B", "--ram", "16G"])
    out, err = capsys.readouterr()
    assert (code, out) == (4, "")
    assert "Qwen/Qwen3-8B" in err
