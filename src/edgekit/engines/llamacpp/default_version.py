"""The version of llama.cpp that bills follow if none is named: that of the llama.cpp that `run` starts."""

from __future__ import annotations

import threading
from functools import cache

from edgekit.engines.llamacpp.types import (
    NEWEST,
    LlamaVersion,
    installed_version,
    named_version,
    read_version,
)

_asking = threading.Lock()  # no program is started twice


def default_version() -> LlamaVersion:
    """EDGEKIT_LLAMA_VERSION, else that of the llama.cpp that `run` starts here, else the newest known."""
    if (named := named_version()) is not None:
        return named
    with _asking:
        return version_of_run() or LlamaVersion(NEWEST)


@cache
def version_of_run() -> LlamaVersion | None:
    """The version of the llama.cpp that `run` starts here; None if there is none.

    The programs are asked only if they or the GPUs have changed since the last time.
    """
    # not needed if a version is named
    from edgekit.engines.llamacpp.stored_version import find_servers, store_version, stored_version
    from edgekit.machine.probes import detect
    from edgekit.machine.surroundings import Surroundings

    wheel, servers = installed_version(), find_servers(Surroundings())
    if not servers or (wheel is not None and not detect().devices):
        return wheel
    name = stored_version(servers)
    if name is None:
        from edgekit.engines.llamacpp.installed import wheel_and_servers

        name = store_version(wheel_and_servers(servers), servers)
    return read_version(name) if name else wheel
