"""Which addresses and host names are public, in all forms in which they can be written."""

from __future__ import annotations

import ipaddress
import os

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.sources.address import (
    connection_target,
    hub_at,
    hub_endpoint,
    is_elsewhere,
    is_local_name,
    is_public,
    token_for,
)

NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.7",
    "224.0.0.251",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",  # IPv4-compatible 127.0.0.1
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:7f00:1",  # IPv4-translated
    "64:ff9b::7f00:1",  # NAT64 of 127.0.0.1
    "64:ff9b::a9fe:a9fe",  # of 169.254.169.254
    "64:ff9b:1::808:808",  # NAT64 of a local prefix
    "100::1",
    "2001::1",  # Teredo
    "2001:0:4136:e378:8000:63bf:80ff:fffe",  # Teredo of 127.0.0.1
    "2001:db8::1",
    "2002:7f00:1::1",  # 6to4 of 127.0.0.1
    "2002:a9fe:a9fe::",  # of 169.254.169.254
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",  # the metadata service of a cloud
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.0",
    "172.32.0.1",
    "223.255.255.255",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
    "2001:200::1",
    "2606:4700:4700::1111",
    "2a00:1450:4001:80b::200e",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_is_public_rejects_private_and_special_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_is_public_accepts_public_addresses(address: str) -> None:
    assert is_public(address)


@given(address=st.ip_addresses())
def test_is_public_accepts_only_what_the_standard_library_calls_global(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not is_public(str(address)):
        return
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address.sixtofour or address
        if address in ipaddress.ip_network("64:ff9b::/96"):
            address = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    assert address.is_global
    assert not any((address.is_multicast, address.is_reserved, address.is_private))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("a.localhost", True),
        ("printer.local", True),
        ("router.home.arpa", True),
        ("metadata.google.internal", True),
        ("intranet", True),
        (".", True),
        ("huggingface.co", False),
        ("mylocalhost.com", False),
        ("local.example", False),
        ("127.0.0.1", False),  # an address, which is_public checks
        ("2130706433", False),
        ("0x7f000001", False),
        ("::1", False),
    ],
)
def test_is_local_name(host: str, *, expected: bool) -> None:
    assert is_local_name(host) is expected


def test_is_elsewhere_of_peer_and_own_address() -> None:
    assert is_elsewhere("8.8.8.8", "192.168.0.7")
    assert not is_elsewhere("8.8.8.8", "8.8.8.8")  # a server that itself has a public address
    assert not is_elsewhere("192.168.0.1", "192.168.0.7")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/",
        "http://LocalHost.:9/",
        "http://user:word@127.1:9/",
        "http://[::1]:9/",
        "http://[::FFFF:127.0.0.1]:9/",
        "http://127\u30020\u30020\u30021:9/",  # ideographic full stops
        "http://127.0.0.1%00.example.com:9/",
        "https://localhost:9/",
    ],
)
def test_connection_target_is_where_the_client_connects(url: str) -> None:
    """If they differed, the guard would take the connection for one to a proxy."""
    targets = []

    def trace(event: str, info: dict[str, object]) -> None:
        if event == "connection.connect_tcp.started":
            targets.append((info["host"], info["port"]))

    with httpx2.Client(trust_env=False) as client, pytest.raises(httpx2.ConnectError):
        client.get(url, extensions={"trace": trace})
    assert targets == [connection_target(httpx2.URL(url))]


@pytest.mark.parametrize(
    ("endpoint", "address", "token"),
    [
        (None, "https://mirror.example", None),
        (None, "https://huggingface.co.example", None),
        (None, "http://huggingface.co", None),  # anybody on the way could read it
        (None, "https://huggingface.co/", "hf_secret"),
        ("https://mirror.example", "https://mirror.example/", "hf_secret"),
        ("https://mirror.example", "https://huggingface.co", "hf_secret"),
        ("https://mirror.example", "https://mirror.example:8443", None),
        ("no address", "https://mirror.example", None),
    ],
)
def test_hub_at_gives_the_token_only_to_hubs_of_the_environment_or_hugging_face(
    endpoint: str | None, address: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    if endpoint is not None:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with hub_at(address):
        assert hub_endpoint() == address.rstrip("/")
        assert token_for(f"{address.rstrip('/')}/api/models") == token
    assert os.environ.get("HF_ENDPOINT") == endpoint
    assert "HF_HUB_DISABLE_IMPLICIT_TOKEN" not in os.environ
