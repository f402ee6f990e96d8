from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.web import Network, refusal

LOCAL_V4 = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.168.1.1", "198.18.0.1"),
    *("198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    "168.63.129.16",
]
LOCAL_V6 = [
    *("::", "::1", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1"),
    *("100::1", "64:ff9b:1::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1", "4000::1"),
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700:4700::1111", "2a00:1450:4001::200e"]
LOCAL = st.sampled_from(LOCAL_V4).map(IPv4Address)
ANY = st.ip_addresses(v=4)


@pytest.mark.parametrize("address", LOCAL_V4 + LOCAL_V6)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refusal(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert refusal(address) is None


@given(ANY | LOCAL)
def test_an_ipv4_address_is_judged_the_same_in_every_ipv6_form_of_it(address: IPv4Address) -> None:
    number = int(address)
    mapped = IPv6Address((0xFFFF << 32) + number)
    nat64 = IPv6Address((0x64FF9B << 96) + number)
    six_to_four = IPv6Address((0x2002 << 112) + (number << 80) + 1)
    plain = refusal(str(address)) is None
    assert [refusal(str(form)) is None for form in (mapped, nat64, six_to_four)] == [plain] * 3


@given(ANY)
def test_all_that_python_knows_as_local_is_refused(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast:
        assert refusal(str(address))


def test_a_network_that_the_operator_names_is_allowed_and_only_that() -> None:
    allowed: list[Network] = [IPv4Network("10.1.0.0/16"), IPv6Network("fd00:1::/32")]
    assert [refusal(address, allowed) is None for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00:1::5")] == [
        True
    ] * 3
    assert [refusal(address, allowed) is None for address in ("10.2.0.1", "127.0.0.1", "fd00:2::5")] == [False] * 3
