"""The one thing that pyproject.toml cannot say yet: the C kernels of the built-in engine.

They are optional: where there is no compiler, numpy does the same work behind the same calls.
"""

import sysconfig
from pathlib import Path

from setuptools import Extension, setup

CSRC = Path("src/edgekit/engines/native/kernels/csrc")
# Loops become vectors where a comparison may be made for all lanes at once (no-trapping-math). MSVC
# warns that it does not know these words, and goes on with its own.
FLAGS = ["-O3", "-ffp-contract=fast", "-fno-trapping-math", "-fno-math-errno", "-g0"]


# One wheel for 3.11 and later; a Python without its lock has no such promise.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")


def files(pattern: str) -> list[str]:
    return sorted(str(path) for path in CSRC.glob(pattern))


setup(
    ext_modules=[
        Extension(
            "edgekit.engines.native.kernels._native",
            sources=files("*.c"),
            depends=files("*.h"),
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
            py_limited_api=STABLE,
            optional=True,
            extra_compile_args=FLAGS,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
