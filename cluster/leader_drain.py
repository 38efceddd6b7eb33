"""Draining a node of its leaderships, so that its restart interrupts no client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strandline.cluster.admin_client import AdminClient, Answer, Unreachable, first_answer
from strandline.cluster.failure import CommandFailed

LEADERSHIPS: Final = "/api/leaderships"
NO_SUCH_PATH: Final = 404
"""Status of a node of an earlier release, which does not tell of its leaderships."""
_DRAIN: Final = f"{LEADERSHIPS}/drain"
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Drained:
    """A node that leads nothing any more but the groups without another voter.

    `needed` groups have no majority without it: those, and the ones with one other voter.
    """

    node: int
    handed_over: int
    needed: int


def drain_leaders(
    addresses: Sequence[str], node: int, seconds: float, timeout: float, say: Callable[[str], Any]
) -> Drained | None:
    """Have a node hand over all that it leads, and lead nothing for `seconds`; returns once that is so.

    None where it runs an earlier release, which hands over when it is told to stop. CommandFailed, with the
    node as before, when it still leads something after `timeout` seconds, or when another of these nodes is
    drained: the two would be restarted together.
    """
    address = _own_address(addresses, node)
    answer = _asked(address)
    if answer is not None and answer.status == NO_SUCH_PATH:
        return None
    told = first_answer([address], "POST", _DRAIN, {"node": node, "seconds": seconds})
    # After the own drain has begun: of two at once each would miss the other before.
    for other in addresses:
        answer = None if other == address else _asked(other)
        if answer is None or answer.status != 200 or answer.body["drained_seconds"] is None:
            continue
        undrain([address], node)
        also, left = answer.body["node"], answer.body["drained_seconds"]
        raise CommandFailed(
            f"node {also} is drained of its leaderships, for {left:.0f} s more: it is about to be restarted",
            f"wait until that is done, or end it: strandline node drain {also} --leaders --undo",
        )
    led, deadline = told["leads"], time.monotonic() + timeout
    while told["leads"]:
        if told["drained_seconds"] is None:
            raise CommandFailed(
                f"node {node} has ended its drain, and leads {told['leads']} groups",
                "another node is away or not in step: see `strandline cluster status`",
            )
        if time.monotonic() > deadline:
            undrain([address], node)
            raise CommandFailed(
                f"node {node} still leads {told['leads']} of {led} groups after {timeout:g} s,"
                " and may lead again",
                "their other replicas do not take over: see `strandline cluster status` and the nodes' logs",
            )
        say(f"node {node}: {told['leads']} of {led} leaderships to hand over")
        time.sleep(_POLL_SECONDS)
        told = first_answer([address], "GET", LEADERSHIPS)
    return Drained(node, led, told["needed"])


def undrain(addresses: Sequence[str], node: int) -> None:
    """Let a node lead again."""
    first_answer([_own_address(addresses, node)], "POST", _DRAIN, {"node": node, "seconds": 0})


def _asked(address: str) -> Answer | None:
    """The answer of a node about its leaderships, None without one."""
    try:
        return AdminClient(address).request("GET", LEADERSHIPS)
    except Unreachable:
        return None


def _own_address(addresses: Sequence[str], node: int) -> str:
    """The HTTP port of a node among these."""
    others = []
    for address in addresses:
        try:
            answer = AdminClient(address).request("GET", "/api/cluster")
        except Unreachable as error:
            others.append(f"{address}: {error}")
            continue
        if answer.status != 200:
            others.append(f"{address}: {answer.reasons}")
        elif answer.body.get("node") == node:
            return address
        else:
            others.append(f"{address} is node {answer.body.get('node')}")
    raise CommandFailed(
        f"node {node} is at none of these addresses ({'; '.join(others)})",
        f"name the HTTP port of node {node} itself with --admin, and see that it runs",
    )
