"""The addresses of this machine for other devices in the network."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress

import psutil

MAX_HOSTS = 4  # `ip address` lists the others
_WILD = {"0.0.0.0": socket.AF_INET, "::": socket.AF_INET6}  # noqa: S104 - compared, not bound
# Addresses reserved for documentation: a UDP socket that is connected to one shows the address that the machine uses
# to reach other networks. Connecting it sends nothing.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
# Networks inside this machine: of containers and virtual machines.
_VIRTUAL = re.compile(
    r"docker|br-|veth|virbr|vboxnet|vmnet|vmbr|cni|flannel|cali|podman|lxc|lxd|kube|zt|"
    r"bridge\d|vEthernet|VirtualBox|VMware",
    re.IGNORECASE,
)


def lan_hosts(host: str) -> tuple[str, ...]:
    """The addresses for other devices of a server that listens on `host`, the likeliest first.

    A server on one address has only that one. 0.0.0.0 and :: stand for all of this machine, without those of networks
    inside it.
    """
    family = _WILD.get(host)
    if family is None:
        return (host,)
    default = _address_to_elsewhere(family)
    found: dict[str, bool] = {} if default is None else {default: True}
    for interface, addresses in _interfaces().items():
        if _VIRTUAL.match(interface) is None:
            texts = (address for kind, address in addresses if kind == family)
            found |= dict.fromkeys((text for text in texts if text not in found), False)
    usable = [text for text in found if _is_usable(text)]
    usable.sort(key=lambda text: (not _is_private(text), not found[text]))  # stable
    return tuple(usable[:MAX_HOSTS])


def _interfaces() -> dict[str, list[tuple[int, str]]]:
    """The family and address of each network interface that is up."""
    try:
        states = psutil.net_if_stats()
        return {
            name: [(int(address.family), address.address) for address in addresses]
            for name, addresses in psutil.net_if_addrs().items()
            if name not in states or states[name].isup
        }
    except (OSError, psutil.Error):  # in a sandbox
        return {}


def _address_to_elsewhere(family: int) -> str | None:
    """The address that this machine uses to reach other networks; None if there is none."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((_ELSEWHERE[socket.AddressFamily(family)], 9))
        return str(probe.getsockname()[0])
    return None


def _is_usable(text: str) -> bool:
    """Whether a browser of another device can open the address: link-local ones need a zone."""
    with suppress(ValueError):
        address = ipaddress.ip_address(text.partition("%")[0])
        return not (address.is_loopback or address.is_link_local or address.is_unspecified)
    return False


def _is_private(text: str) -> bool:
    """Whether the address is one of a home or office network."""
    return ipaddress.ip_address(text.partition("%")[0]).is_private
