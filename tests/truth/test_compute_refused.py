"""Graphs that llama.cpp fails to build are refused."""

from __future__ import annotations

import pytest
from tests.recorded import DATA, gguf_files, header_bytes

from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.setups import read_row
from edgekit.errors import RefusedError
from edgekit.formats import read_header
from edgekit.model import read_geometry
from edgekit.model.types import Model


@pytest.fixture(scope="module")
def plm() -> Model:
    file = "plm-small.Q4_K_M"
    head = header_bytes(f"{file}.head.gz", DATA / "headers_more")
    header = read_header(gguf_files(f"{file}.gguf", head, 1_000_000_000))
    return Model(header=header, geometry=read_geometry(header))


@pytest.mark.parametrize("flash_attn", ["on", "auto"])
def test_plm_needs_flash_attention_off(plm: Model, flash_attn: str) -> None:
    with pytest.raises(RefusedError, match="without flash attention"):
        llamacpp.estimate(plm, *read_row({"n_ctx": 4096, "flash_attn": flash_attn}, "cpu"))


def test_plm_with_microbatches_of_one_token_is_estimated(plm: Model) -> None:
    options = {"n_ctx": 4096, "flash_attn": "on", "n_ubatch": 1}
    assert llamacpp.estimate(plm, *read_row(options, "cpu")).lines
