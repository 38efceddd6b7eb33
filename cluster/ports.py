"""The ports of a local cluster: the usual ones, or free ones, and the process that occupies a wanted one.

"Address in use" is the most common first error, and the name of the process on the port helps to solve it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
KAFKA: Final = 9092
ADMIN: Final = 9644
MESH: Final = 7101
# Below what the system gives to outgoing connections (ip_local_port_range), which would else take them first.
_FREE_FROM: Final = 10_000
_FREE_TO: Final = 32_000
_LISTEN: Final = "0A"  # proc_net_tcp: TCP_LISTEN


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of one node."""

    kafka: int
    admin: int
    mesh: int


def usual_ports(nodes: Sequence[int]) -> dict[int, Ports]:
    """Kafka 9092, HTTP 9644, mesh 7101, and one more of each for every further node."""
    return {node: Ports(KAFKA + place, ADMIN + place, MESH + place) for place, node in enumerate(nodes)}


def free_ports(nodes: Sequence[int]) -> dict[int, Ports]:
    """Ports that are free at this moment, from a random start so that two callers seldom collide.

    Raises OSError when there are not enough.
    """
    wanted = 3 * len(nodes)
    span = _FREE_TO - _FREE_FROM
    start = secrets.randbelow(span)
    found: list[int] = []
    for step in range(span):
        port = _FREE_FROM + (start + step) % span
        if is_free(port):
            found.append(port)
        if len(found) == wanted:
            return {node: Ports(*found[3 * place : 3 * place + 3]) for place, node in enumerate(nodes)}
    raise OSError(f"{wanted} free ports were not to be had between {_FREE_FROM} and {_FREE_TO}")


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


def holder(port: int) -> str:
    """The process that listens there, as far as this user may see, like "pid 1234 (java kafka.Kafka)"."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or inodes.isdisjoint(_descriptors(process)):
            continue
        with contextlib.suppress(OSError):  # gone meanwhile
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ")
            return f"pid {process.name} ({words.decode(errors='replace').strip()[:60]})"
    return "another process"


def _descriptors(process: Path) -> Iterator[str]:
    """The open files of a process, as links to them; none if it is another user's, or gone meanwhile."""
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            # One by one: of this process, the listing's own descriptor is gone when it is looked at.
            with contextlib.suppress(OSError):
                yield os.readlink(descriptor)


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    return inodes
