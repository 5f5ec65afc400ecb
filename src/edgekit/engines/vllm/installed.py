"""vLLM on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from edgekit.engines.program import Installation
from edgekit.engines.protocol import ANSWER_S
from edgekit.engines.python_programs import python_programs
from edgekit.engines.vllm.estimate import VERSION
from edgekit.machine.surroundings import Surroundings

# A build of vLLM or PyTorch names its backend after the "+" of its version, if it is not PyPI's.
_LOCAL = {"cu": "CUDA", "rocm": "ROCm", "xpu": "XPU", "cpu": "CPU", "tpu": "TPU"}
# PyPI's build of PyTorch for Linux needs one of these.
_CUDA = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13")


def installations(
    timeout_s: float = ANSWER_S, here: Surroundings | None = None
) -> tuple[Installation, ...]:
    """The vLLM of EdgeKit's environment and `vllm` on the PATH. With a GPU first."""
    programs = python_programs(
        "vllm",
        "vllm",
        ("vllm", "torch", *_CUDA),
        here=here or Surroundings(),
        timeout_s=timeout_s,
    )
    found = [
        Installation(
            program="vllm",
            origin=program.origin,
            path=program.path,
            version=program.versions.get("vllm", ""),
            build=f"PyTorch {program.versions['torch']}" if "torch" in program.versions else "",
            backends=_backends(program.versions),
            rules_version=VERSION,
            problem=program.problem
            or ("" if "torch" in program.versions else "PyTorch is missing: install vLLM again"),
        )
        for program in programs
    ]
    return tuple(sorted(found, key=lambda item: (bool(item.problem), item.backends == ("CPU",))))


def _backends(versions: Mapping[str, str]) -> tuple[str, ...]:
    for name in ("vllm", "torch"):
        local = versions.get(name, "").partition("+")[2]
        for start, backend in _LOCAL.items():
            if local.startswith(start):
                return (backend,)
    return ("CUDA",) if any(name in versions for name in _CUDA) else ()
