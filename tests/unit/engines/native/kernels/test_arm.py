"""The variants for ARM, compiled here for ARM and run in an emulator, compared with float64.

They need aarch64-linux-gnu-gcc and qemu-aarch64 (Debian: gcc-aarch64-linux-gnu and qemu-user).
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.embed_kernels import KINDS
from tests.patience import PATIENCE_S
from tests.unit.engines.native.kernels.test_multiply import exact, random_x, weights

from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.codebooks import read_codebooks
from edgekit.engines.native.kernels.types import Floats
from edgekit.formats.dtype import by_name

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
MISSING = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}")

CSRC = Path("src/edgekit/engines/native/kernels/csrc")
# A processor of each kind, and the variants that it can run, the best first.
PROCESSORS = {
    "cortex-a72": ("plain",),
    "neoverse-n1": ("dotprod", "plain"),
    "max": ("i8mm", "dotprod", "plain"),
}
VARIANTS = PROCESSORS["max"]
# Of the largest result: a few roundings of float32; for several tokens i8mm rounds x to 16 bits.
TOLERANCE, PAIR_TOLERANCE = 2e-6, 4e-5


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arm")
    (folder / "codebooks").write_bytes(read_codebooks())
    root = Path(__file__).parents[5]
    sources = [path for path in (root / CSRC).glob("*.c") if path.name != "_native.c"]
    sources.append(Path(__file__).with_name("multiply_cases.c"))
    flags = "-O1 -ffp-contract=fast -fno-trapping-math -fno-math-errno -Wall -Werror -static"
    subprocess.run(
        [COMPILER, *flags.split(), f"-I{root / CSRC}", *sources, "-o", folder / "multiply", "-lm"],
        check=True,
        timeout=PATIENCE_S,
    )
    return folder / "multiply"


def run(program: Path, processor: str, *words: str, cases: bytes = b"") -> bytes:
    done = subprocess.run(
        [EMULATOR, "-cpu", processor, program, *words],
        input=cases,
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return done.stdout


def products(
    program: Path, variant: str, name: str, packed: NDArray[np.uint8], x: Floats, *, rows: int
) -> tuple[int, Floats]:
    """The bad block, or -1, and the product."""
    sizes = struct.pack("<4i", by_name(name).ggml_id, rows, x.shape[1], len(x))
    cases = sizes + packed.tobytes() + x.tobytes()
    result = run(program, "max", variant, str(program.parent / "codebooks"), cases=cases)
    out = np.frombuffer(result[4:], np.float32).reshape(len(x), rows)
    return struct.unpack("<i", result[:4])[0], out


@pytest.mark.parametrize("processor", PROCESSORS)
def test_variants_are_those_that_the_processor_can_run(program: Path, processor: str) -> None:
    assert tuple(run(program, processor).decode().split()) == PROCESSORS[processor]


@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize("variant", VARIANTS)
def test_multiply_every_type(program: Path, variant: str, tokens: int) -> None:
    """45 rows: the last one has no partner. 1,280 columns: more than are split at a time."""
    kernels = choose_kernels("numpy")
    for name in KINDS:
        packed, x = weights(name, 45, 1280), random_x(tokens, 1280)
        expected = exact(kernels, name, packed, x, 45)
        bad, actual = products(program, variant, name, packed, x, rows=45)
        tolerance = PAIR_TOLERANCE if variant == "i8mm" and tokens > 1 else TOLERANCE
        assert bad == -1
        error = np.abs(actual - expected).max()
        assert error <= tolerance * max(np.abs(expected).max(), 1280**0.5), name


@pytest.mark.parametrize("variant", ["dotprod", "i8mm"])
def test_multiply_numbers_of_very_different_size(program: Path, variant: str) -> None:
    """Each 32 numbers have their own scale: large ones elsewhere do not make small ones less precise."""
    packed, x = weights("Q4_K", 5, 256), random_x(2, 256)
    x[:, :32] *= 1e6
    x[:, 32:64] *= 1e-35  # too small to be divided by
    x[:, 64:96] = 0
    expected = exact(choose_kernels("numpy"), "Q4_K", packed, x, 5)
    for tokens in (1, 2):
        bad, actual = products(program, variant, "Q4_K", packed, x[:tokens], rows=5)
        assert bad == -1
        assert np.abs(actual - expected[:tokens]).max() <= 1e-4 * np.abs(expected).max()
    x[:, :32] = 0
    expected = exact(choose_kernels("numpy"), "Q4_K", packed, x, 5)
    _, actual = products(program, variant, "Q4_K", packed, x, rows=5)
    assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("variant", ["dotprod", "i8mm"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_multiply_x_that_is_not_finite_is_not_finite(
    program: Path, variant: str, tokens: int, value: float
) -> None:
    packed, x = weights("Q6_K", 4, 512), random_x(tokens, 512)
    x[0, 300] = value
    _, actual = products(program, variant, "Q6_K", packed, x, rows=4)
    assert not np.isfinite(actual[0]).any()
    assert np.isfinite(actual[1:]).all()


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("variant", VARIANTS)
def test_multiply_counts_a_bad_block_from_the_start_of_the_weights(
    program: Path, variant: str, tokens: int
) -> None:
    packed = weights("Q4_K", 40, 1024)
    packed.reshape(-1, 144)[37 * 4 + 2, :2] = (0, 0x7C)
    bad, _ = products(program, variant, "Q4_K", packed, random_x(tokens, 1024), rows=40)
    assert bad == 37 * 4 + 2
