"""mlx-lm on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from edgekit.engines import lm_studio
from edgekit.engines.mlx.estimate import VERSION
from edgekit.engines.program import Installation
from edgekit.engines.protocol import ANSWER_S
from edgekit.engines.python_programs import python_programs
from edgekit.machine.surroundings import Surroundings

# The distributions that mlx needs for each backend: setup.py of mlx 0.32.
_BACKENDS = {
    "mlx-metal": "Metal",
    "mlx-cuda": "CUDA",
    "mlx-cuda-12": "CUDA",
    "mlx-cuda-13": "CUDA",
    "mlx-cpu": "CPU",
}


def installations(
    timeout_s: float = ANSWER_S, here: Surroundings | None = None
) -> tuple[Installation, ...]:
    """mlx-lm in EdgeKit's environment, `mlx_lm.server` on the PATH, and LM Studio's MLX. With a GPU first."""
    here = here or Surroundings()
    programs = python_programs(
        "mlx_lm",
        "mlx_lm.server",
        ("mlx-lm", "mlx", *_BACKENDS),
        here=here,
        timeout_s=timeout_s,
    )
    found = [
        Installation(
            program="mlx",
            origin=program.origin,
            path=program.path,
            version=program.versions.get("mlx-lm", ""),
            build=f"MLX {program.versions['mlx']}" if "mlx" in program.versions else "",
            backends=_backends(program.versions),
            rules_version=VERSION,
            problem=program.problem or _problem(program.versions),
        )
        for program in programs
    ]
    found += lm_studio.installations("mlx", VERSION)
    return tuple(sorted(found, key=lambda item: (bool(item.problem), item.backends == ("CPU",))))


def _backends(versions: Mapping[str, str]) -> tuple[str, ...]:
    backends = {_BACKENDS[name] for name in versions if name in _BACKENDS}
    return tuple(name for name in ("Metal", "CUDA", "CPU") if name in backends)


def _problem(versions: Mapping[str, str]) -> str:
    if "mlx" not in versions:
        return "MLX itself is missing: pip install mlx"
    if not _backends(versions):
        return "MLX has no backend: on Linux, pip install 'mlx[cuda13]' or 'mlx[cpu]'"
    return ""
