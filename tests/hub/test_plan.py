"""`edgekit plan` against a hub: repositories with several quantisations, and a hub that is down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.hub import nginx_hub
from tests.hub.nginx_hub import Hub
from tests.hub.test_check import running
from tests.unit.plan.machines import cards, cpu
from tests.unit.plan.tasks import gguf, is_within, rated

from edgekit.app.check import Check, check
from edgekit.app.ladder import ladder
from edgekit.app.open import open_named
from edgekit.app.plan import plan_model, task_to_plan
from edgekit.bill.types import Lever, Status
from edgekit.cli import main
from edgekit.engines.llamacpp.conversion import convert
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.run.generated import HollowFile, generated_files
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.errors import RemoteInspectError
from edgekit.machine.types import Machine
from edgekit.model.types import Model
from edgekit.models import can_load, model_preflight
from edgekit.plan.plan import Plan
from edgekit.request import Request, Session
from edgekit.sources.types import Reach
from edgekit.units import Basis

REPOSITORY, MISNAMED = "acme/llama-8b-GGUF", "acme/misnamed-GGUF"
QUANTS = ("Q8_0", "Q6_K", "Q4_K_M", "IQ4_XS")


def model_at(quant: str) -> Model:
    """llama-3.1-8b as it was recorded, or as llama-quantize would write it."""
    if quant in {"Q8_0", "Q4_K_M"}:
        return gguf("llama-3.1-8b", quant)
    return convert(gguf("llama-3.1-8b"), quant).model


def add_repositories(add: Callable[..., None], _: Callable[..., None]) -> None:
    """A repository with a file for each quantisation, and one whose Q6_K file is really a Q8_0."""
    named = [(REPOSITORY, quant, quant) for quant in QUANTS]
    misnamed = [(MISNAMED, "Q6_K", "Q8_0"), (MISNAMED, "Q4_K_M", "Q4_K_M")]
    for repository, quant, real in (*named, *misnamed):
        file = generated_files(model_at(real).header, label="llama-8b").weights[0].open()
        assert isinstance(file, HollowFile)
        weights_bytes = file.size_bytes - len(file.header)
        add(repository, f"llama-8b-{quant}.gguf", file.header, weights_bytes)


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nginx_hub, "_add_whole", add_repositories)
        with running(tmp_path_factory.mktemp("nginx")) as (hub, _):
            yield hub


@pytest.fixture(autouse=True)
def _hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub cache"))


def plan(request: Request, reach: Reach, name: str = REPOSITORY) -> Plan:
    return plan_model(open_named(name, Session(reach=reach)), request, Session(reach=reach))


def files_read(hub: Hub) -> list[str]:
    """Quantisations, in the order in which their files were read."""
    result = (re.findall(r"llama-8b-(\w+)\.gguf", line) for line in hub.log("cdn"))
    return list(dict.fromkeys(quant for quants in result for quant in quants))


# --- which file of a repository


def test_plan_chooses_among_the_files_of_the_repository(hub: Hub, reach: Reach) -> None:
    session = Session(reach=reach)
    named = open_named(REPOSITORY, session)
    variants = task_to_plan(named, Request(machine=cpu(16)), session).variants
    assert [variant.name for variant in variants] == [
        *QUANTS
    ]  # none that would have to be converted
    assert {variant.reference for variant in variants} == {
        REPOSITORY,
        *(f"{REPOSITORY}:{quant}" for quant in QUANTS if quant != "Q4_K_M"),
    }
    assert files_read(hub) == ["Q4_K_M"]  # the default file is read first


@pytest.mark.usefixtures("hub")
def test_quant_chooses_the_file_of_a_repository(reach: Reach) -> None:
    for quant in QUANTS:
        result = open_named(REPOSITORY, Session(reach=reach), quant=quant.lower())
        assert result.files is not None
        assert result.files.weights[0].name == f"llama-8b-{quant}.gguf"
        assert result.quant is None
    other = open_named(REPOSITORY, Session(reach=reach), quant="Q5_K_M")
    assert other.quant == "Q5_K_M"  # no such file: the default is converted


@pytest.mark.usefixtures("hub")
def test_quant_of_the_default_file_is_not_replaced_by_a_better_file(reach: Reach) -> None:
    request = Request(machine=rated(cards(48), card=1000), quant="Q4_K_M")
    (answer,) = check(REPOSITORY, request, Session(reach=reach))
    assert isinstance(answer, Check)
    assert answer.result.quantization == "Q4_K_M"


def test_ladder_lists_the_files_and_reads_only_the_chosen_one(hub: Hub, reach: Reach) -> None:
    session = Session(reach=reach)
    answer = ladder(REPOSITORY, Request(machine=rated(cards(48), card=1000)), session)
    assert [rung.quant for rung in answer.rungs] == [*QUANTS]
    assert {rung.repository for rung in answer.rungs} == {REPOSITORY}
    assert [rung.flags for rung in answer.rungs] == [{"quant": quant} for quant in QUANTS]
    assert set(files_read(hub)) == {"Q4_K_M", answer.chosen.quant}
    estimated = {rung.quant for rung in answer.rungs if rung.because}
    assert estimated == set(QUANTS) - {"Q4_K_M", answer.chosen.quant}
    for rung in answer.rungs:  # the estimate from a file's name is within 1 % of its header
        opened = open_named(REPOSITORY, session, quant=rung.quant).found
        assert opened is not None
        assert rung.size_bytes is not None
        assert rung.size_bytes == pytest.approx(opened.model.header.tensor_bytes, rel=0.01)


# Weights: 6.1 GiB at Q6_K, 4.6 at Q4_K_M, 4.1 at IQ4_XS; 32K take 4 GiB at f16, 16K take 1.1 at q8_0.
FAST = rated(cards(48), card=1000)
CHOSEN_FILES = [
    pytest.param(FAST, "Q6_K", 1, id="comfortable at Q6_K; Q8_0 only on request"),
    pytest.param(cards(48), "Q6_K", 1, id="speed unknown"),
    pytest.param(rated(cpu(48)), "Q4_K_M", 1, id="slower than reading speed"),
    pytest.param(rated(cards(12)), "Q4_K_M", 1, id="tight at Q6_K"),
    pytest.param(rated(cards(7)), "IQ4_XS", 5, id="only IQ4_XS fits on the GPU"),
    pytest.param(rated(cards(5)), "Q4_K_M", 6, id="no file fits on the GPU"),
]


@pytest.mark.parametrize(("machine", "quant", "step"), CHOSEN_FILES)
def test_plan_reads_the_header_of_the_chosen_file(
    hub: Hub, reach: Reach, machine: Machine, quant: str, step: int
) -> None:
    result = plan(Request(machine=machine), reach)
    assert is_within(result)
    assert (result.variant.name, result.result.step) == (quant, step)
    assert result.variant.reference in {REPOSITORY, f"{REPOSITORY}:{quant}"}
    assert result.variant.model.header.tensor_bytes == model_at(quant).header.tensor_bytes
    assert dict(result.variant.changes) == {}  # the file itself, not a conversion
    assert files_read(hub) == list(dict.fromkeys(("Q4_K_M", quant)))
    assert LlamaCppSetup.of(result.result.way.setup).mix is None


@pytest.mark.parametrize(("machine", "quant", "step"), CHOSEN_FILES)
def test_check_and_python_choose_the_file_that_plan_chooses(
    hub: Hub, reach: Reach, machine: Machine, quant: str, step: int
) -> None:
    result = model_preflight(REPOSITORY, machine=machine, reach=reach)
    assert (result.quantization, result.step) == (quant, step)
    assert result.required_bytes == plan(Request(machine=machine), reach).result.required_bytes
    assert files_read(hub) == list(dict.fromkeys(("Q4_K_M", quant)))
    assert can_load(REPOSITORY, machine=machine, reach=reach)


def test_file_larger_than_its_name_says_is_judged_by_its_size(hub: Hub, reach: Reach) -> None:
    """Its Q6_K file is really a Q8_0: comfortable by its name, tight by its size."""
    machine = rated(cards(14))
    assert plan(Request(machine=machine), reach).variant.name == "Q6_K"
    answer = plan(Request(machine=machine), reach, MISNAMED)
    assert files_read(hub) == ["Q4_K_M", "Q6_K"]
    assert answer.variant.name == "Q4_K_M"
    result = model_preflight(MISNAMED, machine=machine, reach=reach)
    assert (result.quantization, result.status) == ("Q4_K_M", Status.PASSED)


def test_plan_is_exact_for_the_chosen_file(hub: Hub, reach: Reach) -> None:
    result = plan(Request(machine=FAST, context=16_384), reach)
    exact = estimate(model_at("Q6_K"), result.load, LlamaCppSetup.of(result.result.way.setup))
    assert exact.total_bytes == result.result.estimate.total_bytes
    caches = [line.basis for line in result.result.estimate.lines if line.layer is not None]
    assert set(caches) == {Basis.EXACT}
    decision = result.decision(Lever.WEIGHTS)
    assert decision is not None
    assert decision.value == "Q6_K"


@pytest.mark.parametrize("name", [f"{REPOSITORY}:Q4_K_M", f"{REPOSITORY}/llama-8b-Q4_K_M.gguf"])
def test_named_file_is_not_replaced(hub: Hub, reach: Reach, name: str) -> None:
    result = plan(Request(machine=FAST), reach, name)
    assert LlamaCppSetup.of(result.result.way.setup).mix is None
    assert files_read(hub) == ["Q4_K_M"]


def test_repository_that_does_not_fit_is_planned_with_changes_that_fit(
    hub: Hub, reach: Reach
) -> None:
    result = plan(Request(machine=cpu(3)), reach)
    assert not result.fits
    assert result.to_fit
    assert model_preflight(REPOSITORY, machine=cpu(3), reach=reach).failed
    assert not can_load(REPOSITORY, machine=cpu(3), reach=reach)


def test_commands_name_the_chosen_file(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    words = [REPOSITORY, "--device", "RTX 6000 Ada", "--ram", "64G", "-c", "16k"]
    assert main(["plan", *words, "--for", "llama-server"]) == 0
    planned, err = capsys.readouterr()
    assert (planned.startswith(f"llama-server -hf {REPOSITORY}:Q6_K "), err) == (True, "")
    assert main(["check", *words]) == 0
    assert f"llama-server -hf {REPOSITORY}:Q6_K " in capsys.readouterr().out


# --- a hub that cannot be reached


def test_repository_of_the_catalog_is_planned_without_the_hub(
    reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    named = open_named("Qwen/Qwen3-8B", Session(reach=replace(reach, total_timeout_s=2.0)))
    assert named.entry is not None
    assert named.entry.id == "qwen3-8b"
    assert "could not be read" in named.notes[0]
    assert plan_model(named, Request(machine=cpu(16)), Session(reach=reach)).fits


def test_hub_that_goes_down_before_the_header_is_read_is_an_error(
    hub: Hub, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No plan is made for a file whose header cannot be read, even if it is listed."""
    named = open_named(REPOSITORY, Session(reach=reach))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    request = Request(machine=FAST)
    with pytest.raises(RemoteInspectError, match="cannot reach"):
        plan_model(named, request, Session(reach=replace(reach, total_timeout_s=2.0)))


def test_missing_repository_is_not_answered_from_the_catalog(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hub answered that it does not exist, so the catalog entry of that name is not used."""
    code = main(["plan", "Qwen/Qwen3-8B", "--ram", "16G"])
    out, err = capsys.readouterr()
    assert (code, out) == (4, "")
    assert "Qwen/Qwen3-8B" in err
