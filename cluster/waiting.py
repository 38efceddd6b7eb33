"""Waiting until the nodes of a local cluster are healthy, and telling why they are not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from strandline.cluster.admin_client import AdminClient
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local_files import LocalNode

STORAGE_SECONDS: Final = 10.0
"""Time limit for a failing object store once nothing else is wrong."""
FOLDER_SECONDS: Final = 5.0
"""Time limit for nodes that wait for lost folders; accepting a folder takes two or three."""
_POLL_SECONDS: Final = 0.03


class StorageFails(CommandFailed):
    """Nothing is wrong but the object store; nodes that run go on by themselves once it is well."""


class FolderRefused(CommandFailed):
    """The others refuse a node's data folder. The node has to run for `node replace` to let it in."""


def wait_healthy(nodes: Sequence[LocalNode], timeout: float, progress: Callable[[str], None]) -> None:
    """Return once every node did its part; CommandFailed when one dies, or does not within `timeout` seconds.

    An object store that fails is waited for a shorter time: it is mostly a wrong name or key. So are data
    folders that are lost: no waiting brings them back.
    """
    began = time.monotonic()
    waiting: dict[int, str] = {node.node: "has just started" for node in nodes}
    by_id = {node.node: node for node in nodes}
    storage_since: float | None = None
    folders_since: float | None = None
    while waiting:
        only_storage = True
        details: dict[int, Mapping[str, str]] = {}
        for node in list(waiting):
            each = by_id[node]
            if each.pid is None:
                raise CommandFailed(
                    f"node {node} died: {each.last_words() or 'it left no word'}",
                    f"the cause is in {each.log}",
                )
            told = AdminClient(each.admin).state()
            only_storage &= told.only_storage
            details[node] = told.details
            if told.does_its_part:
                del waiting[node]
            else:
                waiting[node] = told.problem or "no reason is known"
        progress(f"{len(nodes) - len(waiting)} of {len(nodes)} nodes healthy")
        now = time.monotonic()
        lost = _lost_folders(details, len(nodes)) if waiting else None
        folders_since = None if lost is None else folders_since or now
        if lost is not None and folders_since is not None and now - folders_since >= FOLDER_SECONDS:
            raise lost
        storage_since = None if not only_storage else storage_since or now
        storage_over = storage_since is not None and now - storage_since >= STORAGE_SECONDS
        if waiting and (now - began >= timeout or storage_over):
            late, problem = next(iter(waiting.items()))
            raise (StorageFails if storage_over else CommandFailed)(
                f"node {late} is not healthy after {now - began:.0f} s: {problem}",
                f"see {by_id[late].log}" + ("" if storage_over else "; more time: --timeout"),
            )
        if waiting:
            time.sleep(_POLL_SECONDS)


def _lost_folders(details: Mapping[int, Mapping[str, str]], nodes: int) -> CommandFailed | None:
    """Problems that only an operator can solve: a refused folder, or new folders of all nodes."""
    for node, problems in details.items():
        if (refused := problems.get("folder_refused")) is not None:
            return FolderRefused(
                f"node {node} cannot take part: {refused}",
                f"node {node} goes on running, so that the command can let it in",
            )
    found = list(details.values())
    if len(found) == nodes and all("folder_new" in each and "storage_failing" not in each for each in found):
        return CommandFailed(
            f"no node that was started can begin: {found[0]['folder_new']}",
            "no waiting mends that; nothing was changed",
        )
    return None
