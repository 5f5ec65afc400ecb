"""-ot and --rpc, as they are written -> overrides, and devices of servers."""

from __future__ import annotations

from edgekit.engines.llamacpp.patterns import searcher
from edgekit.engines.llamacpp.types import DeviceSlot, Override
from edgekit.errors import UsageError
from edgekit.units import parse_size

MOST_OVERRIDES = 256  # people write one, or one for each layer
MOST_DEVICES = 16  # ggml-cuda.h: GGML_CUDA_MAX_DEVICES
MOST_PORTS = 65_536


def read_overrides(text: str) -> tuple[Override, ...]:
    """PATTERN=BUFFER, ...: whether there is such a buffer is seen when it is billed. Raises UsageError."""
    entries = text.split(",")
    if len(entries) > MOST_OVERRIDES:
        raise UsageError(f"{len(entries)} overrides are more than {MOST_OVERRIDES}")
    found: list[Override] = []
    for entry in entries:
        pattern, _, buffer = entry.partition("=")
        if not (pattern and buffer):
            raise UsageError(
                f"{entry[:60]!r} is not PATTERN=BUFFER, such as exps=CPU "
                "(a comma separates two of them, so a pattern cannot contain one)"
            )
        searcher(pattern)
        found.append(Override(pattern=pattern, buffer=buffer))
    return tuple(found)


def read_servers(text: str) -> tuple[DeviceSlot, ...]:
    """HOST:PORT=FREE, ...: devices, named as llama.cpp does. FREE of several: 24G+24G. Raises UsageError."""
    found: list[DeviceSlot] = []
    for entry in text.split(","):
        endpoint, _, memory = entry.partition("=")
        host, _, port = endpoint.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port[:6]) < MOST_PORTS):
            raise UsageError(f"{entry[:60]!r} is not a server such as 192.168.1.5:50052=24G")
        if not memory:
            raise UsageError(
                f"the free memory of {endpoint[:60]} is not known: add it, as in {endpoint[:60]}=24G "
                "(for a server with two devices =24G+24G)"
            )
        found += (
            DeviceSlot(free_bytes=parse_size(one), rpc=f"RPC{i}[{endpoint}]")
            for i, one in enumerate(memory.split("+"))
        )
    if len(found) > MOST_DEVICES:
        raise UsageError(f"{len(found)} devices are more than {MOST_DEVICES}")
    return tuple(found)
