"""`edgekit serve MODEL MODEL`, up to the moment at which the gateway would start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.runtime_engines import small_model

from edgekit.cli import main
from edgekit.gateway.swap import ModelEntry

pytest.importorskip("xllamacpp")
Fits = Callable[[frozenset[str]], bool]
Plan = Callable[..., tuple[list[str], Fits]]


class PlannedError(Exception):
    """The models would be served now."""


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The names of the models that a command line serves, and which of them may be loaded at the same time."""
    names: list[str] = []
    rules: list[Fits] = []

    def models(entries: Sequence[ModelEntry], fits: Fits) -> None:
        names[:] = [entry.name for entry in entries]
        rules.append(fits)
        raise PlannedError

    monkeypatch.setattr("edgekit.gateway.swap.SwappingModels", models)

    def plan(*argv: str) -> tuple[list[str], Fits]:
        with pytest.raises(PlannedError):
            main(
                [
                    "serve",
                    *argv,
                    "-c",
                    "512",
                    "-np",
                    "1",
                    "--port",
                    "0",
                    "--quiet",
                ]
            )
        return names, rules[-1]

    return plan


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models of 38 MiB, and one of 170 to 180 MiB: with more memory, llama.cpp takes more."""
    folder = tmp_path_factory.mktemp("several")
    wide = {"width": 1024, "inner": 2048, "heads": 8, "kv_heads": 8, "head_dim": 128}
    return [
        str(small_model(folder / f"{name}.gguf", "llama", layers=layers, **wide))
        for name, layers in (("a", 1), ("b", 1), ("big", 7))
    ]


SMALL, A_AND_BIG = frozenset({"a.gguf", "b.gguf"}), frozenset({"a.gguf", "big.gguf"})
BUDGET = ("--budget", "226M", "--reserve", "0")  # not for all three


def test_prompt_caches_of_loaded_models_count_when_another_is_loaded(
    planned: Plan, paths: list[str]
) -> None:
    """The small models have prompt caches of 75 MiB. Without, one of them would fit next to the large one."""
    names, fits = planned(*paths, *BUDGET)
    assert names == ["a.gguf", "b.gguf", "big.gguf"]
    assert (fits(SMALL), fits(A_AND_BIG)) == (True, False)
    _, fits = planned(*paths, *BUDGET, "-cram", "0")
    assert (fits(SMALL), fits(A_AND_BIG)) == (True, True)


def test_prompt_cache_of_the_user_is_limited_to_its_share(planned: Plan, paths: list[str]) -> None:
    _, fits = planned(*paths, *BUDGET, "-cram", "4096")
    assert (fits(SMALL), fits(A_AND_BIG)) == (True, False)


def test_max_use_limits_which_models_are_loaded_at_the_same_time(
    planned: Plan, paths: list[str]
) -> None:
    words = (*paths, "--budget", "400M", "--reserve", "0", "-cram", "0")
    assert planned(*words)[1](A_AND_BIG)
    assert not planned(*words, "--max-use", "48%")[1](A_AND_BIG)


def test_models_with_the_same_file_name_are_numbered(planned: Plan, tmp_path: Path) -> None:
    for folder in "xyz":
        (tmp_path / folder).mkdir()
        small_model(tmp_path / folder / "a.gguf")
    names, _ = planned(*(str(tmp_path / folder / "a.gguf") for folder in "xyz"))
    assert names == ["a.gguf", "a.gguf-2", "a.gguf-3"]


def test_model_that_does_not_fit_alone_is_refused_with_the_numbers(
    paths: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("serve", *paths, "-c", "512", "--budget", "100M", "--reserve", "0", "--quiet")
    assert main(argv) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "Does not fit" in err
    assert "MiB" in err
    assert main((*argv, "--json")) == 3
    out, _ = capsys.readouterr()
    report = json.loads(out)
    assert report["model"] == "big.gguf"
    assert not report["can_load"]
    assert report["required_bytes"] > report["available_bytes"] > 0


def test_force_is_for_a_single_model(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("serve", *paths, "--budget", "100M", "--reserve", "0", "--force")) == 2
    assert "--force are for a single model" in capsys.readouterr().err
