"""Protection from requests that a foreign page makes a browser send.

A page can make a browser resolve its own name to the loopback (DNS rebinding), and can then read and change
everything here, as of its own origin. The Host header reveals it: it has the page's name. A page cannot have
an address in place of a name, so requests by address are let in, whatever the address is, and so are the
names that always mean this machine and those that are configured.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]


class Origins:
    """Judges requests by their headers; `names` are those under which this node is known beside addresses."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    def refusal(self, headers: Headers) -> tuple[int, str] | None:
        """Status and reason why a request is not answered; None for one that is.

        Without a Host header (HTTP/1.0) no browser has sent it.
        """
        host = origin = None
        for name, value in headers:
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
        if host is not None and not self._is_known(host):
            return HTTPStatus.MISDIRECTED_REQUEST, (
                f"the Host header says {host[:80]!r}, which is not known as a name of this node: ask it by "
                "its address, or add the name to admin.hosts"
            )
        if origin is not None and not _is_of(origin, host or ""):
            return HTTPStatus.FORBIDDEN, (
                f"a page of {origin[:80]!r} in a browser asked, and this node answers only its own pages: "
                "use curl, or the command strandline"
            )
        return None

    def _is_known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        name = name.rstrip(".")
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_of(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:  # of what is no URL
        return False
