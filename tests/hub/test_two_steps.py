"""A verdict from the first range of a GGUF where that decides it, from its whole header where it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.hub import nginx_hub, test_check
from tests.hub.nginx_hub import Hub

from edgekit.cli import main
from edgekit.header.types import Value
from edgekit.models import can_load, model_preflight
from edgekit.preflight import TENSORS_NOT_CHECKED
from edgekit.resolver import resolve_model
from edgekit.source.types import Reach, Traffic
from edgekit.verify.generated import generated_files
from edgekit.verify.hollow import HollowFile

MODEL = "acme/gemma-GGUF"
FIRST_RANGE = "bytes=0-524287"
# It needs 18.7 GiB with 16K: 85 % of 22, after 1 of reserve. Tight at 26G, and not with its whole window.
FITS, NEAR, ON_THE_LINE, FAILS = "256G", "26G", "23G", "8G"


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """With gemma-3-27b at Q4_K_M: 6.9 MB of keys, vocabulary and directory, then a hole."""
    model = resolve_model("gemma-3-27b").as_file("llama.cpp").model
    tokens = tuple(f"token number {one:06d}" for one in range(262_144))
    behind: dict[str, Value] = {
        "tokenizer.ggml.tokens": tokens,
        "general.file_type": 15,
    }  # as llama-quantize writes
    keys = {name: value for name, value in model.header.keys.items() if name not in behind}
    files = generated_files(replace(model.header, keys={**keys, **behind}), label="gemma")
    file = files.weights[0].open()
    assert isinstance(file, HollowFile)
    real = nginx_hub._add_whole

    def with_gemma(add: Callable[..., None], add_json: Callable[..., None]) -> None:
        real(add, add_json)
        add(MODEL, "gemma-Q4_K_M.gguf", file.header, file.size_bytes - len(file.header))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nginx_hub, "_add_whole", with_gemma)
        with test_check.running(tmp_path_factory.mktemp("nginx")) as (hub, _):
            yield hub


@pytest.fixture
def counted() -> Reach:
    return Reach(cache=False, traffic=Traffic())


def ranges(hub: Hub) -> list[str]:
    return [line.split()[3] for line in hub.log("cdn")]


def is_whole(hub: Hub) -> bool:
    """Whether the directory was read: by ranges that follow each other, the first only once."""
    asked = [tuple(map(int, one.removeprefix("bytes=").split("-"))) for one in ranges(hub)]
    assert ranges(hub)[0] == FIRST_RANGE
    assert all(first == last + 1 for (_, last), (first, _) in pairwise(asked))
    return len(asked) > 1


@pytest.mark.parametrize(("ram", "whole"), [(FITS, False), (NEAR, True), (FAILS, False)])
def test_model_preflight_reads_the_directory_where_it_decides(
    hub: Hub, counted: Reach, *, ram: str, whole: bool
) -> None:
    quick = model_preflight(MODEL, ram=ram, reach=counted)
    assert is_whole(hub) is whole
    assert (TENSORS_NOT_CHECKED in quick.estimate.notes) is not whole
    if not whole:
        assert counted.traffic.requests <= 3  # the listing, the redirect, the range
        assert counted.traffic.received_bytes < 2**20
    exact = model_preflight(MODEL, ram=ram, exact=True, reach=replace(counted, traffic=Traffic()))
    assert TENSORS_NOT_CHECKED not in exact.estimate.notes
    for name in ("status", "context_tokens", "max_context", "asked"):
        assert getattr(quick, name) == getattr(exact, name)
    assert quick.required_bytes == pytest.approx(exact.required_bytes, rel=0.02)


@pytest.mark.parametrize(("ram", "whole"), [(NEAR, False), (ON_THE_LINE, True), (FAILS, False)])
def test_can_load_reads_the_directory_where_it_decides(
    hub: Hub, counted: Reach, *, ram: str, whole: bool
) -> None:
    assert can_load(MODEL, ram=ram, reach=counted) is (ram != FAILS)
    assert is_whole(hub) is whole


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (["--ram", FITS], False),
        (["--ram", FAILS], False),
        (["--ram", NEAR], True),
        (["--ram", FITS, "--exact"], True),
        (["--ram", FITS, "--json"], True),
        (["--device", "RTX 4090", "--ram", "64G"], True),  # layers on the host: a placement
    ],
)
def test_check_reads_the_directory_where_it_decides(
    hub: Hub, capsys: pytest.CaptureFixture[str], *, words: list[str], whole: bool
) -> None:
    main(["check", MODEL, *words, "--no-cache"])
    out = " ".join(capsys.readouterr().out.split())
    assert is_whole(hub) is whole
    assert ("tensors were not checked" in out) is not whole


def test_check_says_the_same_with_and_without_the_directory(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[Any, ...]] = []
    for more in ([], ["--exact"]):
        code = main(["check", MODEL, "--ram", FITS, *more])
        lines = capsys.readouterr().out.splitlines()
        told.append((code, lines[0], lines[-1]))
    assert told[0] == told[1]
    assert "-hf acme/gemma-GGUF" in told[0][-1]
