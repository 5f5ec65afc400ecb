"""The instruction sets of this machine that kernels for quantised weights use."""

from __future__ import annotations

from edgekit.machine.processors import processor_like
from edgekit.machine.surroundings import Surroundings, pairs_of
from edgekit.machine.types import System

# Our name -> the flag in /proc/cpuinfo. Kernels need AVX-512 with BW (bytes and words), and AMX for bytes.
_X86 = {
    "sse": "sse4_2", "avx": "avx", "f16c": "f16c", "avx2": "avx2", "avx_vnni": "avx_vnni", "avx512": "avx512bw",
    "avx512_vnni": "avx512_vnni", "amx": "amx_int8",
}  # fmt: skip
_ARM = {"neon": "asimd", "dotprod": "asimddp", "i8mm": "i8mm", "sve": "sve"}
_ARM_32 = "neon"  # what 32-bit ARM calls asimd
# Our name -> macOS' sysctl.
_MACOS = {
    "sse": "hw.optional.sse4_2", "avx": "hw.optional.avx1_0", "f16c": "hw.optional.f16c", "avx2": "hw.optional.avx2_0",
    "avx512": "hw.optional.avx512bw", "avx512_vnni": "hw.optional.avx512vnni", "neon": "hw.optional.neon",
    "dotprod": "hw.optional.arm.FEAT_DotProd", "i8mm": "hw.optional.arm.FEAT_I8MM",
}  # fmt: skip
# Our name -> the argument of Windows' IsProcessorFeaturePresent, PF_..._AVAILABLE in winnt.h.
_WINDOWS = {
    "sse": 38, "avx": 39, "avx2": 40, "avx512": 41, "neon": 19, "dotprod": 43, "sve": 46, "i8mm": 66,
}  # fmt: skip


def find_instructions(surroundings: Surroundings, processor_name: str) -> frozenset[str]:
    """What the system reports; where it reports nothing, what the table says; empty if that does not know either.

    Windows cannot report all of them: there the table adds the others.
    """
    known = processor_like(processor_name)
    official = frozenset[str]() if known is None else known.instructions
    if surroundings.system is System.LINUX:
        values = pairs_of(surroundings.root / "proc/cpuinfo", ":")
        x86, arm = values.get("flags", "").split(), values.get("Features", "").split()
        found = {name for name, flag in _X86.items() if flag in x86}
        found |= {name for name, flag in _ARM.items() if flag in arm}
        found |= {"neon"} if _ARM_32 in arm else set()
        return frozenset(found) or official
    if surroundings.system is System.MACOS:
        found = {name for name, key in _MACOS.items() if any(surroundings.sysctl(key) or b"")}
        return frozenset(found) or official
    if surroundings.system is System.WINDOWS:
        found = {
            name for name, number in _WINDOWS.items() if surroundings.processor_feature(number)
        }
        if found:
            # F16C came with AVX2 at the latest. What Windows denies is not there, whatever the table says.
            found |= {"f16c"} if "avx2" in found else set()
            return frozenset(found | (official - _WINDOWS.keys()))
    return official
