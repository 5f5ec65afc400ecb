"""What is checked before loaded models are stopped for another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runnable import write_chatting

from edgekit.engines.program import LocalWeights
from edgekit.errors import EdgekitError, NotFoundError
from edgekit.gateway.engines import checker


def test_files_that_can_be_read_pass(tmp_path: Path) -> None:
    model = write_chatting(tmp_path / "a.gguf")
    checker(LocalWeights(model=model, projector=model, adapters=(model,)))()
    checker(LocalWeights(model=Path(), name="hf.co/of-the-program"))()


def test_file_that_is_gone_is_named_and_no_other(tmp_path: Path) -> None:
    model, gone = write_chatting(tmp_path / "a.gguf"), tmp_path / "a2.gguf"
    for weights in (LocalWeights(model=gone), LocalWeights(model=model, projector=gone)):
        with pytest.raises(NotFoundError) as caught:
            checker(weights)()
        assert str(caught.value) == f"{gone} does not exist any more"


def test_file_that_was_cut_off_does_not_pass(tmp_path: Path) -> None:
    model = write_chatting(tmp_path / "a.gguf")
    model.write_bytes(model.read_bytes()[:5000])
    with pytest.raises(EdgekitError):
        checker(LocalWeights(model=model))()
