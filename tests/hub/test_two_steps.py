"""The first range of a GGUF gives the verdict where it suffices; otherwise the whole header is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.hub import nginx_hub, test_check
from tests.hub.nginx_hub import Hub

from edgekit.app.check import TENSORS_NOT_CHECKED
from edgekit.app.open import open_named
from edgekit.cli import main
from edgekit.engines.llamacpp.conversion import convert
from edgekit.engines.llamacpp.run.generated import HollowFile, generated_files
from edgekit.formats.types import Value
from edgekit.models import can_load, model_preflight
from edgekit.sources.types import Reach, Traffic

MODEL, SEVERAL = "acme/gemma-GGUF", "acme/gemma-several-GGUF"
FIRST_RANGE = "bytes=0-524287"
# The model needs 20.0 GiB at 32K, and 1 GiB is reserved: with 26G its native window does not fit. Its smallest
# load, 16K with a 4-bit cache, needs 16.5 GiB.
FITS, NEAR, ON_THE_LINE, FAILS = "256G", "26G", "17920M", "8G"


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """With gemma-3-27b: 6.9 MB of keys, vocabulary and tensor directory, then a hole."""
    model = open_named("gemma-3-27b").opened("llama.cpp").model
    tokens = tuple(f"token number {item:06d}" for item in range(262_144))

    def file_at(quant: str, file_type: int) -> HollowFile:
        header = convert(model, quant).model.header
        replaced: dict[str, Value] = {
            "tokenizer.ggml.tokens": tokens,
            "general.file_type": file_type,
        }  # as llama-quantize writes
        keys = {name: value for name, value in header.keys.items() if name not in replaced}
        files = generated_files(replace(header, keys={**keys, **replaced}), label="gemma")
        file = files.weights[0].open()
        assert isinstance(file, HollowFile)
        return file

    original = nginx_hub._add_whole

    def with_gemma(add: Callable[..., None], add_json: Callable[..., None]) -> None:
        original(add, add_json)
        small, large = file_at("Q4_K_M", 15), file_at("Q6_K", 18)
        named = [(MODEL, "Q4_K_M", small), (SEVERAL, "Q4_K_M", small), (SEVERAL, "Q6_K", large)]
        for repository, quant, file in named:
            holes = file.size_bytes - len(file.header)
            add(repository, f"gemma-{quant}.gguf", file.header, holes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nginx_hub, "_add_whole", with_gemma)
        with test_check.running(tmp_path_factory.mktemp("nginx")) as (hub, _):
            yield hub


@pytest.fixture
def uncached() -> Reach:
    return Reach(cache=False, traffic=Traffic())


def ranges(hub: Hub) -> list[str]:
    return [line.split()[3] for line in hub.log("cdn")]


def reads_directory(hub: Hub) -> bool:
    """Whether the tensor directory was read. Asserts that the ranges follow each other."""
    offsets = [tuple(map(int, item.removeprefix("bytes=").split("-"))) for item in ranges(hub)]
    assert ranges(hub)[0] == FIRST_RANGE
    assert all(first == last + 1 for (_, last), (first, _) in pairwise(offsets))
    return len(offsets) > 1


@pytest.mark.parametrize(("ram", "directory"), [(FITS, False), (NEAR, True), (FAILS, False)])
def test_model_preflight_reads_the_directory_only_if_it_decides(
    hub: Hub, uncached: Reach, *, ram: str, directory: bool
) -> None:
    quick = model_preflight(MODEL, ram=ram, reach=uncached)
    assert reads_directory(hub) is directory
    assert (TENSORS_NOT_CHECKED in quick.estimate.notes) is not directory
    if not directory:
        assert uncached.traffic.requests <= 3  # the listing, the redirect, the range
        assert uncached.traffic.received_bytes < 2**20
    exact = model_preflight(MODEL, ram=ram, exact=True, reach=replace(uncached, traffic=Traffic()))
    assert TENSORS_NOT_CHECKED not in exact.estimate.notes
    for name in ("status", "context_tokens", "max_context", "asked"):
        assert getattr(quick, name) == getattr(exact, name)
    assert quick.required_bytes == pytest.approx(exact.required_bytes, rel=0.02)


@pytest.mark.parametrize(("ram", "directory"), [(NEAR, False), (ON_THE_LINE, True), (FAILS, False)])
def test_can_load_reads_the_directory_only_if_it_decides(
    hub: Hub, uncached: Reach, *, ram: str, directory: bool
) -> None:
    assert can_load(MODEL, ram=ram, reach=uncached) is (ram != FAILS)
    assert reads_directory(hub) is directory


@pytest.mark.parametrize(
    ("words", "directory"),
    [
        (["--ram", FITS], False),
        (["--ram", FAILS], False),
        (["--ram", NEAR], True),
        (["--ram", FITS, "--exact"], True),
        (["--ram", FITS, "--json"], True),
        (["--device", "RTX 4090", "--ram", "64G"], True),  # some layers in RAM
    ],
)
def test_check_reads_the_directory_only_if_it_decides(
    hub: Hub, capsys: pytest.CaptureFixture[str], *, words: list[str], directory: bool
) -> None:
    main(["check", MODEL, *words, "--no-cache"])
    out = " ".join(capsys.readouterr().out.split())
    assert reads_directory(hub) is directory
    assert ("tensors were not checked" in out) is not directory


def test_check_answers_the_same_with_and_without_the_directory(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    """Except for the size, which the first range gives within 2 %."""
    sizes, outputs = [], []
    for more in ([], ["--exact"]):
        code = main(["check", MODEL, "--ram", FITS, *more])
        out = capsys.readouterr().out
        headline = re.match(r"Runs on the CPU: ([0-9.]+)( of 255.0 GiB at 32K, .*)", out)
        assert headline is not None
        command = re.search(r"llama-server -hf acme/gemma-GGUF:Q4_K_M .*", out)
        assert command is not None
        sizes.append(float(headline[1]))
        outputs.append((code, headline[2], command[0]))
    assert outputs[0] == outputs[1]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


# --- a repository with several quantisations

LARGE_CARD = "RTX 6000 Ada"  # 48 GB: the native window is comfortable at Q6_K


def ranges_by_file(hub: Hub) -> list[tuple[str, str]]:
    """(quantisation, range) of each request, in order."""
    result = (re.search(r"gemma-(\w+)\.gguf", line) for line in hub.log("cdn"))
    names = [item[1] for item in result if item is not None]
    return list(zip(names, ranges(hub), strict=True))


def test_one_range_of_the_chosen_file_decides(hub: Hub, uncached: Reach) -> None:
    quick = model_preflight(SEVERAL, device=LARGE_CARD, reach=uncached)
    assert (quick.quantization, quick.status.name, quick.step) == ("Q6_K", "PASSED", 1)
    assert ranges_by_file(hub) == [("Q4_K_M", FIRST_RANGE), ("Q6_K", FIRST_RANGE)]
    assert TENSORS_NOT_CHECKED in quick.estimate.notes
    assert 2 * 2**19 <= uncached.traffic.received_bytes < 2 * 2**19 + 2**18
    exact = model_preflight(SEVERAL, device=LARGE_CARD, exact=True)
    for name in ("quantization", "cache", "step", "status", "context_tokens", "max_context"):
        assert getattr(quick, name) == getattr(exact, name)
    assert quick.required_bytes == pytest.approx(exact.required_bytes, rel=0.02)


def test_only_the_chosen_file_is_read_completely(hub: Hub, uncached: Reach) -> None:
    """With 32 GB the context is the longest that is comfortable, which depends on the tensor directory."""
    result = model_preflight(SEVERAL, device="RTX 5090", ram="64G", reach=uncached)
    assert (result.quantization, result.status.name) == ("Q6_K", "PASSED")
    assert TENSORS_NOT_CHECKED not in result.estimate.notes
    ranges_read = ranges_by_file(hub)
    assert [item for item in ranges_read if item[0] == "Q4_K_M"] == [("Q4_K_M", FIRST_RANGE)]
    assert len([item for item in ranges_read if item[0] == "Q6_K"]) > 1


def test_can_load_reads_one_range_if_the_default_file_fits(hub: Hub, uncached: Reach) -> None:
    assert can_load(SEVERAL, device=LARGE_CARD, reach=uncached)
    assert ranges_by_file(hub) == [("Q4_K_M", FIRST_RANGE)]
