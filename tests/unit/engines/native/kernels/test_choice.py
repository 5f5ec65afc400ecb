"""choose_kernels: the default, by name, by variable, and without the C extension."""

from __future__ import annotations

import sys

import pytest
from tests.embed_kernels import HAVE_NATIVE

from edgekit.engines.native.kernels import choose_kernels
from edgekit.errors import UnknownDtypeError, UsageError
from edgekit.formats.dtype import by_name


@pytest.fixture(autouse=True)
def _without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEKIT_KERNELS", raising=False)


@pytest.mark.skipif(not HAVE_NATIVE, reason="the extension was not built here")
def test_choose_kernels_prefers_native() -> None:
    assert choose_kernels().name == "native"


def test_choose_kernels_numpy_by_name_and_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_kernels("numpy").name == "numpy"
    monkeypatch.setenv("EDGEKIT_KERNELS", "numpy")
    assert choose_kernels().name == "numpy"


def test_choose_kernels_refuses_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="native or numpy"):
        choose_kernels("cuda")
    monkeypatch.setenv("EDGEKIT_KERNELS", "fast")
    with pytest.raises(UsageError, match="EDGEKIT_KERNELS"):
        choose_kernels()


def test_choose_kernels_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an install without a C compiler."""
    monkeypatch.delitem(sys.modules, "edgekit.engines.native.kernels.native", raising=False)
    monkeypatch.setitem(sys.modules, "edgekit.engines.native.kernels._native", None)
    monkeypatch.delattr("edgekit.engines.native.kernels._native", raising=False)
    assert choose_kernels().name == "numpy"
    with pytest.raises(UsageError, match="C compiler"):
        choose_kernels("native")


@pytest.mark.parametrize(
    "name",
    [
        "numpy",
        pytest.param("native", marks=pytest.mark.skipif(not HAVE_NATIVE, reason="not built")),
    ],
)
@pytest.mark.parametrize("kind", ["Q8_K", "I32", "NVFP4", "F8_E4M3"])
def test_dequantize_refuses_an_unsupported_type(name: str, kind: str) -> None:
    import numpy as np

    with pytest.raises(UnknownDtypeError, match=kind):
        choose_kernels(name).dequantize(by_name(kind), b"", np.empty(0, np.float32))
