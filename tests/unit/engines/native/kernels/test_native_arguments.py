"""Invalid arguments to the C extension: a Python error, never a read or write outside the arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.embed_kernels import HAVE_NATIVE

if not HAVE_NATIVE:
    pytest.skip("the extension was not built here", allow_module_level=True)

from edgekit.engines.native.kernels import _native

Q4_K, F32, IQ2_S = 12, 0, 22


def floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


SCRATCH = floats(_native.scratch_floats(64))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((99, b"", floats(1)), "unpacked"),
        ((-1, b"", floats(1)), "range"),
        ((2**40, b"", floats(1)), "unpacked"),
        ((Q4_K, bytes(143), floats(256)), "whole blocks"),
        ((Q4_K, bytes(144), floats(255)), "small"),
        ((Q4_K, bytes(144), floats(2, 128)), "one dimension"),
        ((Q4_K, bytes(144), floats(512)[::2]), "gaps"),
        ((Q4_K, bytes(144), np.zeros(256)), "float32"),
        ((Q4_K, bytes(144), np.zeros(256, np.int32)), "float32"),
        ((Q4_K, bytes(144), np.frombuffer(bytearray(1025), np.float32, 256, offset=1)), "aligned"),
        ((F32, bytes(8), floats(1, 1, 2)), "float32"),
    ],
)
def test_dequantize_refuses_invalid_arrays(arguments: tuple[Any, ...], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        _native.dequantize(*arguments)


def test_dequantize_refuses_arguments_that_are_not_arrays() -> None:
    for arguments in (
        (Q4_K, 3, floats(256)),
        (Q4_K, bytes(144), None),
        ("Q4_K", b"", floats(1)),
        (Q4_K, b""),
    ):
        with pytest.raises(TypeError):
            _native.dequantize(*arguments)
    with pytest.raises((BufferError, ValueError)):
        _native.dequantize(Q4_K, bytes(144), np.frombuffer(bytes(1024), np.float32))  # read-only
    with pytest.raises((BufferError, ValueError)):
        _native.dequantize(Q4_K, np.zeros((2, 144), np.uint8)[:, ::2], floats(256))  # with gaps


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((Q4_K, bytes(288), floats(4, 256), floats(4, 3), SCRATCH), "rows"),
        ((Q4_K, bytes(288), floats(4, 256), floats(3, 2), SCRATCH), "rows"),
        ((Q4_K, bytes(287), floats(4, 256), floats(4, 2), SCRATCH), "rows"),
        ((Q4_K, bytes(288), floats(4, 257), floats(4, 2), SCRATCH), "whole blocks"),
        ((Q4_K, bytes(288), floats(4, 256), floats(4, 2), SCRATCH[1:]), "small"),
        (
            (Q4_K, bytes(288), np.broadcast_to(floats(1, 256), (4, 256)), floats(4, 2), SCRATCH),
            "one another",
        ),
        ((Q4_K, bytes(288), floats(256, 4).T, floats(4, 2), SCRATCH), "gaps"),
        ((Q4_K, bytes(288), floats(8, 256)[::-1][:4], floats(4, 2), SCRATCH), "one another"),
        ((F32, b"x", floats(0, 0), floats(0, 0), SCRATCH), "rows"),
        ((F32, b"", floats(0, 2**40), floats(0, 1), SCRATCH), "rows"),
    ],
)
def test_multiply_refuses_mismatched_arrays(arguments: tuple[Any, ...], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        _native.multiply(*arguments)


def attention(**changed: Any) -> None:
    arguments: dict[str, Any] = {
        "q": floats(10, 16), "k": floats(10, 8), "v": floats(10, 8), "out": floats(10, 16),
        "starts": np.array([0, 4, 10], np.int32), "heads": 4, "kv_heads": 2, "head_dim": 4, "scale": 1.0,
        "causal": False, "slopes": None, "scratch": floats(_native.attention_floats(6, 4)), "first": 0, "last": 8,
    }  # fmt: skip
    _native.attention(*(arguments | changed).values())


def test_attention_with_valid_arguments() -> None:
    attention()
    attention(slopes=floats(4), causal=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"starts": np.array([0, 4, 11], np.int32)},
        {"starts": np.array([-1, 4, 10], np.int32)},
        {"starts": np.array([5, 4, 10], np.int32)},
        {"starts": np.array([0, 2**31 - 1, -(2**31)], np.int32)},
        {"starts": np.array([0, 4, 10])},
        {"starts": np.zeros(0, np.int32), "last": 0},
        {"heads": 0},
        {"heads": 3},
        {"heads": 8},
        {"heads": -4},
        {"kv_heads": 0},
        {"kv_heads": 4},
        {"head_dim": 0},
        {"head_dim": 5},
        {"head_dim": 2**62},
        {"first": -1},
        {"first": 9},
        {"last": 9},
        {"last": 2**62},
        {"slopes": floats(3)},
        {"scratch": floats(_native.attention_floats(6, 4) - 1)},
        {"k": floats(9, 8), "v": floats(9, 8)},
        {"v": floats(10, 7)},
        {"out": floats(10, 15)},
        {"out": floats(9, 16)},
    ],
    ids=str,
)
def test_attention_refuses_invalid_arguments(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        attention(**changed)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (_native.layer_norm, (floats(3, 8), floats(3, 7), floats(8), None, 1e-5)),
        (_native.layer_norm, (floats(3, 8), floats(3, 8), floats(7), None, 1e-5)),
        (_native.layer_norm, (floats(3, 8), floats(3, 8), floats(8), floats(7), 1e-5)),
        (_native.rms_norm, (floats(3, 8), floats(2, 8), floats(8), None, 1e-5)),
        (_native.activate, (floats(3, 8), floats(3, 7), 0)),
        (_native.activate, (floats(3, 8), None, 3)),
        (_native.activate, (floats(3, 8), None, -1)),
        (_native.rope, (floats(3, 8), floats(3, 2), floats(3, 1), 2, 4, True)),
        (_native.rope, (floats(3, 8), floats(2, 2), floats(2, 2), 2, 4, True)),
        (_native.rope, (floats(3, 8), floats(3, 3), floats(3, 3), 2, 4, True)),
        (_native.rope, (floats(3, 8), floats(3, 2), floats(3, 2), 3, 4, True)),
        (_native.rope, (floats(3, 8), floats(3, 2), floats(3, 2), 2, 0, True)),
        (_native.rope, (floats(3, 8), floats(3, 2), floats(3, 2), 2**61, 8, True)),
        (_native.load_codebooks, (bytes(100),)),
        (_native.use_variant, ("sse9",)),
        (_native.attention_floats, (-1, 4)),
    ],
)
def test_other_kernels_refuse_mismatched_arrays(function: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        function(*arguments)


@pytest.mark.parametrize("name", ["multiply", "attention", "layer_norm", "activate", "rope"])
def test_kernels_refuse_a_wrong_number_of_arguments(name: str) -> None:
    with pytest.raises(TypeError, match="arguments"):
        getattr(_native, name)(1, 2)
