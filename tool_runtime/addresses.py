"""Which network addresses a tool may connect to: public ones, and the private networks that the operator names."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network

# IANA's registries of special-purpose addresses, and what clouds answer metadata on beside the link-local address.
# Our own list: `ipaddress.is_global` differs between the Pythons that we support.
_NOT_PUBLIC: tuple[tuple[Network, str], ...] = (
    (IPv4Network("0.0.0.0/8"), "this network"),
    (IPv4Network("10.0.0.0/8"), "private"),
    (IPv4Network("100.64.0.0/10"), "carrier-grade NAT"),
    (IPv4Network("127.0.0.0/8"), "loopback"),
    (IPv4Network("168.63.129.16/32"), "cloud metadata"),
    (IPv4Network("169.254.0.0/16"), "link-local"),
    (IPv4Network("172.16.0.0/12"), "private"),
    (IPv4Network("192.0.0.0/24"), "protocol assignments"),
    (IPv4Network("192.0.2.0/24"), "documentation"),
    (IPv4Network("192.88.99.0/24"), "6to4 relay"),
    (IPv4Network("192.168.0.0/16"), "private"),
    (IPv4Network("198.18.0.0/15"), "benchmarking"),
    (IPv4Network("198.51.100.0/24"), "documentation"),
    (IPv4Network("203.0.113.0/24"), "documentation"),
    (IPv4Network("224.0.0.0/4"), "multicast"),
    (IPv4Network("240.0.0.0/4"), "reserved"),
    (IPv6Network("2001::/23"), "protocol assignments"),
    (IPv6Network("2001:db8::/32"), "documentation"),
    (IPv6Network("3fff::/20"), "documentation"),
)
_GLOBAL_V6 = IPv6Network("2000::/3")
"""The only IPv6 range that is assigned to hosts of the internet; all else is local in some way."""
_NAT64 = IPv6Network("64:ff9b::/96")


def refusal(address: str, allowed: Collection[Network] = ()) -> str | None:
    """Why there may be no connection to an address; None if there may.

    `address` is what a socket is connected to, so it is in the standard form: a resolver has already read
    what was written in decimal, octal or hexadecimal.
    """
    outer = ip_address(address.partition("%")[0])
    reached = _embedded(outer) or outer
    if any(reached in network or outer in network for network in allowed):
        return None
    if isinstance(reached, IPv6Address) and reached not in _GLOBAL_V6:
        return f"{address} is no public address (local IPv6)"
    for network, name in _NOT_PUBLIC:
        if reached in network:
            return f"{address} is no public address ({name})"
    return None


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address that is reached by an IPv6 one: mapped, 6to4, or through NAT64."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour
