"""The answers of all nodes to one question: each node's status, and its partitions page by page."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from strandline.cluster.admin_client import AdminClient, Unreachable
from strandline.cluster.failure import CommandFailed

PAGE: Final = 1000
MAX_PAGES: Final = 1000
"""Of partitions, a node: a million."""


@dataclass(slots=True)
class NodeAnswers:
    """One node's answers; `problem` says why there are none."""

    address: str
    problem: str | None = None
    status: dict[str, Any] = field(default_factory=dict)
    partitions: list[dict[str, Any]] = field(default_factory=list)


def ask(
    addresses: Iterable[str], path: str, told: AbstractSet[str], topic: str | None = None
) -> list[NodeAnswers]:
    """Every node's status at `path` and its partitions below that, all or a topic's.

    `told` are fields that every status has. Raises CommandFailed when no node answers.
    """
    answers = [_ask(address, path, told, topic) for address in addresses]
    if all(answer.problem is not None for answer in answers):
        problems = "; ".join(f"{answer.address}: {answer.problem}" for answer in answers)
        raise CommandFailed(
            f"no node answers ({problems})",
            "check that the nodes run (`strandline cluster status`), or name one's HTTP port with --admin",
        )
    return answers


def _ask(address: str, path: str, told: AbstractSet[str], topic: str | None) -> NodeAnswers:
    client, found = AdminClient(address), NodeAnswers(address)
    query: dict[str, Any] = {"limit": PAGE} if topic is None else {"limit": PAGE, "topic": topic}
    try:
        found.status = _good(client, path)
        if not found.status.keys() >= told:
            raise LookupError
        for _ in range(MAX_PAGES):
            page = _good(client, f"{path}/partitions?{urlencode(query)}")
            found.partitions += page["partitions"]
            if page["next"] is None:
                break
            query["after"] = page["next"]
    except Unreachable as error:
        found.problem = str(error)
    except (LookupError, TypeError, AttributeError):
        found.problem = "it is not a node's HTTP port, or the node is of another release"
    return found


def _good(client: AdminClient, path: str) -> Any:
    answer = client.request("GET", path)
    if answer.status != 200:
        raise Unreachable(answer.reasons)
    return answer.body
