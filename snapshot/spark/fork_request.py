"""A program that Spark runs as its Python: it asks for a fork with the modules loaded (`fork_server.py`).

`python -I -S fork_request.py SOCKET PYTHON ARGUMENTS...` gives the fork this process's standard streams, its
arguments and its environment, waits for its end, and ends as it does. Where there is no fork to be had, this
process becomes a Python that begins from nothing. It is run as a file, and imports next to nothing: its start
is all that a Python process costs then.
"""

from __future__ import annotations

import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

TAKEN = b"+"
"""The server's answer before the fork's exit status, if there will be a fork."""
STREAMS = 3
_SECONDS = 30.0
"""Longest wait for that answer: the server may still be loading modules."""


def packed(arguments: list[str]) -> bytes:
    """A request for a fork: the folder, the number of arguments, these, and the environment."""
    given = [os.getcwdb(), b"%d" % len(arguments), *map(os.fsencode, arguments)]
    told = b"\0".join(given + [name + b"=" + value for name, value in os.environb.items()])
    return len(told).to_bytes(4, "big") + told


def status_of_fork(path: str, arguments: list[str]) -> int | None:
    """The exit status of the fork, or None if there was none."""
    server = socket(AF_UNIX, SOCK_STREAM)
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(STREAMS))
    try:
        server.settimeout(_SECONDS)
        server.connect(path)
        told = packed(arguments)
        server.sendmsg([told[:4]], [(SOL_SOCKET, SCM_RIGHTS, streams)])
        server.sendall(told[4:])
        if server.recv(1) != TAKEN:
            return None
    except OSError:
        return None
    server.settimeout(None)
    try:
        status = server.recv(1)
    except OSError:
        status = b""
    return status[0] if status else 1


def main(path: str, python: str, arguments: list[str]) -> None:
    # Only a module's start can be taken over by a process that runs already.
    status = status_of_fork(path, arguments) if arguments[:1] == ["-m"] else None
    if status is None:
        os.execv(python, [python, *arguments])
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
