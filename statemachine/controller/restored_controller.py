"""The controller's state as a restored cluster begins with it: that of a restore point, moved on.

The cluster before may have gone on after the point. So every number that it counted goes on above all that it
can have used: cluster epochs, ids of groups, producer ids. Its nodes have new data folders and are dead until
they register. Moves and replacements of that time have ended: each partition is where it was before its move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from strandline.statemachine.controller.controller_state import REMOVED, ControllerState, NodeFolder

EPOCHS: Final = 1 << 30
"""Cluster epochs for each step: one a second for 34 years."""
GROUPS: Final = 100_000
"""Raft groups for each step: partitions that were created after the point and are not in it."""
TERMS: Final = 1 << 18
"""Terms for each step: 3 elections a second for a day. A group has fewer, as each waits for a timeout of
0.4 s or more."""
PRODUCER_IDS: Final = 1 << 40
"""Producer ids for each step: a million a second for 12 days."""


def first_producer_id(state: ControllerState, steps: int) -> int:
    """The lowest producer id that the cluster before cannot have used."""
    return state.next_producer_id + steps * PRODUCER_IDS


def earlier_terms(group: int) -> int:
    """The term up to which a partition may have been led in the cluster before, for its new group.

    A partition that was added after the point is lost, and may be added again: the same one to its clients,
    and by the names of its objects. Ids of groups and terms move on by as many steps, so a group's id tells
    how far its terms have to. 0 in a cluster that was never restored and made fewer groups than a step.
    """
    return group // GROUPS * TERMS


def move_on(
    state: ControllerState,
    *,
    steps: int,
    incarnation: str,
    folders: Mapping[int, int],
    next_producer_id: int,
) -> None:
    """Change the state of a point into that of the cluster restored from it.

    `steps` is how far the numbers move on, 1 or more. `folders` are the identities of the nodes' new data
    folders. Producer ids from `first_producer_id` to below `next_producer_id` are used by the restore.
    """
    state.incarnation = incarnation
    state.cluster_epoch += steps * EPOCHS
    state.next_group += steps * GROUPS
    state.next_producer_id = next_producer_id
    # Ids of removed nodes are given to no other, and what these nodes wrote is still collected.
    removed = {node: folder for node, folder in state.folders.items() if folder.folder == REMOVED}
    state.folders = removed | {
        node: NodeFolder(_generation(state, node) + 1, folder) for node, folder in sorted(folders.items())
    }
    for registration in state.nodes.values():
        state.put_node(registration._replace(fenced=True))
    # A topic that it does not know was made after the point, and what there is of it goes.
    state.forgotten_index = max(1, state.forgotten_index)
    state.replacement = None
    for group, move in list(state.moves.items()):
        topic_id, number = state.places[group]
        state.put_replicas(state.topics[topic_id], number, move.original)
    state.moves = {}


def hosts(state: ControllerState) -> Collection[int]:
    """Nodes that have a replica of any partition, or ever registered and were not removed: a restored cluster
    needs them all."""
    hosted = {node for node, groups in state.hosted.items() if groups}
    served = {node for node, folder in state.folders.items() if folder.folder != REMOVED}
    return sorted(hosted | served | set(state.nodes))


def _generation(state: ControllerState, node: int) -> int:
    known = state.folders.get(node)
    return 0 if known is None else known.generation
