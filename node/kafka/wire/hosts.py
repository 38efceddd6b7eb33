"""The host behind an address, so that bounds of one host count all of its addresses."""

from __future__ import annotations

import ipaddress
from typing import Final

_IPV6_PREFIX: Final = 64
"""Bits; a host has all addresses of such a network (RFC 4291, section 2.5.1)."""


def host_of(address: str) -> str:
    """The same text for all addresses that one host may have."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((int(parsed), _IPV6_PREFIX), strict=False))
    return str(parsed)
