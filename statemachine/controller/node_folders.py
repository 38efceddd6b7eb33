"""Data folders of the nodes, and their end: `strandline node replace` and `strandline node remove`.

A node's promises (its votes, the entries it acknowledged) lie in its folder, so another folder under the same
id is another voter (Raft §6; KIP-853 tells voters apart by id and directory). While a folder is replaced,
every group of the node first leaves it out of its members, and only when all have done so the new folder is
let in and joins them again as a learner. One node is replaced at a time; docs/raft.md, "Folders", says why
that is safe. If a second folder is lost meanwhile, groups of both nodes may have no majority left, and the
replacement would wait for them for ever: the operator may delete their topics, internal ones too.

A node that is removed is forgotten at once: it has no replicas, so nothing refers to it. The controller's
group then leaves it out of its members, as in a replacement by no folder. Its id stays known with the folder
REMOVED, so no folder of it is let in again but by a replacement. A replacement whose new folder is lost as
well ends so too: else all others would wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.statemachine.controller.controller_commands import (
    RemoveNode,
    ReplaceNode,
    ReplicasJoined,
    ReplicasLeft,
)
from strandline.statemachine.controller.controller_state import (
    CONTROLLER_GROUP,
    REMOVED,
    ControllerState,
    NodeFolder,
    Replacement,
    Topic,
)
from strandline.statemachine.controller.feature_levels import TARGETS
from strandline.statemachine.kafka_errors import KafkaError, Refused

_NAMED = 5
"""Topics that a refusal names; the rest is counted."""


FolderCommand = ReplaceNode | RemoveNode | ReplicasLeft | ReplicasJoined


def apply(state: ControllerState, index: int, command: FolderCommand) -> int | Refused:
    """Do what a command says, or refuse it and change nothing."""
    match command:
        case ReplaceNode():
            return replace(state, index, command)
        case RemoveNode():
            return remove(state, index, command)
        case ReplicasLeft():
            return left(state, index, command)
        case ReplicasJoined():
            return joined(state, index, command)


def replacing(folders: Mapping[int, NodeFolder], level: int, node: int, folder: int) -> ReplaceNode:
    """The command that puts a folder in the place of the one that the node has by now, at a feature level."""
    return ReplaceNode(node, folder, _next_generation(folders.get(node)) if level >= TARGETS else 0)


def removing(folders: Mapping[int, NodeFolder], level: int, node: int) -> RemoveNode:
    """The command that removes a node with the folder that it has by now, at a feature level."""
    return RemoveNode(node, _next_generation(folders.get(node)) if level >= TARGETS else 0)


def _next_generation(known: NodeFolder | None) -> int:
    return 1 + (known.generation if known else 0)


def replace(state: ControllerState, index: int, command: ReplaceNode) -> int | Refused:
    """Begin to put another folder in the place of a node's; how many groups have still to leave it out."""
    node, present = command.node, state.replacement
    if present is not None and present.node != node:
        return _invalid(_wait_for(state, present))
    if present is not None and present.folder == command.folder:
        return len(present.leaving)
    known, folder = state.nodes.get(node), state.folders.get(node)
    if folder is not None and folder.folder == command.folder:
        return _invalid(f"Data folder {command.folder:016x} is the one that node {node} has.")
    if command.generation not in (0, _next_generation(folder)):
        return _invalid(_changed(node))
    if known is not None and not known.fenced and (present is None or present.boot_id != known.boot_id):
        return _invalid(f"Node {node} is alive with its data folder: stop that process first.")
    few = sorted({_topic(state, group) for group in state.hosted.get(node, ()) if _has_few(state, group)})
    if few:
        return _invalid(
            f"Node {node} had one of only one or two replicas of partitions of {_named(few)}, which have no"
            " majority without it: bring its data folder back, or delete these topics first."
        )
    state.folders[node] = NodeFolder(_next_generation(folder), command.folder)
    groups = {CONTROLLER_GROUP, *state.hosted.get(node, ())}
    boot_id = known.boot_id if known else 0
    state.replacement = Replacement(node, command.folder, boot_id, frozenset(groups), frozenset())
    if known is not None and not known.fenced:
        state.put_node(known._replace(fenced=True))
    state.version = index
    return len(groups)


def remove(state: ControllerState, index: int, command: RemoveNode) -> int | Refused:
    """Forget a node; how many groups have still to leave it out."""
    node, present, known = command.node, state.replacement, state.nodes.get(command.node)
    if present is not None and present.node != node:
        return _invalid(_wait_for(state, present))
    if known is None and (present is None or present.folder == REMOVED):
        folder = state.folders.get(node)
        if folder is None or folder.folder != REMOVED:
            return Refused(KafkaError.BROKER_ID_NOT_REGISTERED, f"Node {node} is not registered.")
        return 0 if present is None else len(present.leaving)
    if command.generation not in (0, _next_generation(state.folders.get(node))):
        return _invalid(_changed(node))
    refused = _needed(state, node)
    if refused is not None:
        return _invalid(refused)
    state.forget_node(node)
    state.folders[node] = NodeFolder(state.folders[node].generation + 1, REMOVED)
    boot_id = known.boot_id if known else 0
    state.replacement = Replacement(node, REMOVED, boot_id, frozenset((CONTROLLER_GROUP,)), frozenset())
    state.version = index
    return 1


def _changed(node: int) -> str:
    return (
        f"Node {node} got another data folder since this was asked for: see `strandline node list`, and ask"
        " again."
    )


def _needed(state: ControllerState, node: int) -> str | None:
    """The reason why a node cannot be removed, and the cure; None if it can."""
    known = state.nodes.get(node)
    if known is not None and not known.fenced:
        return f"Node {node} is alive: stop its process first. It counts as dead some seconds later."
    # While a partition moves, its replicas are those before and those after.
    held = sorted({_topic(state, group) for group in state.hosted.get(node, ())})
    if held:
        return (
            f"Node {node} has replicas of {_named(held)}: move them to other nodes first, with"
            f" `strandline node drain {node}`."
        )
    others = [other for other in state.nodes.values() if other.node != node]
    alive = sum(not other.fenced for other in others)
    if not others:
        return f"Node {node} is the last one of the cluster, which ends with it: stop it instead."
    if alive <= len(others) // 2:
        return (
            f"Only {alive} of the {len(others)} other nodes are alive, and the controller needs a majority of"
            " those without this one: start them first."
        )
    return None


def left(state: ControllerState, index: int, command: ReplicasLeft) -> int | Refused:
    """Groups have left the node out of their members; how many have still to do so."""
    present = _present(state, command)
    if present is None:
        return _over(command.node)
    leaving = present.leaving - set(command.groups)
    joining = present.joining | (present.leaving - leaving)
    if present.folder == REMOVED:
        joining = present.joining
    state.replacement = present._replace(leaving=leaving, joining=joining)
    state.version = index
    _end(state)
    return len(leaving)


def joined(state: ControllerState, index: int, command: ReplicasJoined) -> int | Refused:
    """Groups have the node among their members again; how many have still to get there."""
    present = _present(state, command)
    if present is None:
        return _over(command.node)
    joining = present.joining - set(command.groups)
    state.replacement = present._replace(joining=joining)
    state.version = index
    _end(state)
    return len(joining)


def stuck_topics(state: ControllerState) -> list[str]:
    """Topics with partitions that the replacement waits for and that have no majority of live replicas."""
    present = state.replacement
    if present is None:
        return []
    waiting = (present.leaving | present.joining) - {CONTROLLER_GROUP}
    return sorted({_topic(state, group) for group in waiting if _is_stuck(state, present, group)})


def is_stuck(state: ControllerState, topic: Topic) -> bool:
    """Whether this is one of the `stuck_topics`."""
    present = state.replacement
    return present is not None and any(
        _is_stuck(state, present, partition.group) for partition in topic.partitions
    )


def _is_stuck(state: ControllerState, present: Replacement, group: int) -> bool:
    """Whether a group cannot commit its next change of members. The replaced node does not count."""
    replicas = _replicas(state, group)
    others = [node for node in replicas if node != present.node]
    alive = sum(1 for node in others if not state.nodes[node].fenced)
    if group in present.leaving:
        return alive <= len(replicas) // 2
    return group in present.joining and alive <= len(others) // 2


def _wait_for(state: ControllerState, present: Replacement) -> str:
    stuck = stuck_topics(state)
    if present.folder == REMOVED:
        return f"Node {present.node} is being removed: wait until that is over."
    if not stuck:
        return f"Node {present.node} is being replaced: wait until that is over."
    return (
        f"Node {present.node} is being replaced, and that cannot end while partitions of {_named(stuck)} have"
        " no majority of live replicas: start the nodes that have their data folders, or, if those are lost,"
        " delete these topics."
    )


def forget_groups(state: ControllerState, groups: Sequence[int]) -> None:
    """Forget the groups of a deleted topic: the replacement does not wait for them."""
    present = state.replacement
    if present is not None:
        gone = set(groups)
        state.replacement = present._replace(leaving=present.leaving - gone, joining=present.joining - gone)
        _end(state)


def forget_moved(state: ControllerState, group: int, replicas: Sequence[int]) -> None:
    """Forget a group that moved away from the node: its members are these by now, and the node stays out.

    The report of a move may be under way when a replacement begins. Waiting for the node to be a member
    again, which has no replica to be one with, would never end.
    """
    present = state.replacement
    if present is not None and present.node not in replicas:
        forget_groups(state, (group,))


def _end(state: ControllerState) -> None:
    present = state.replacement
    if present is not None and not present.leaving and not present.joining:
        state.replacement = None


def _present(state: ControllerState, command: ReplicasLeft | ReplicasJoined) -> Replacement | None:
    present = state.replacement
    if present is None or (present.node, present.folder) != (command.node, command.folder):
        return None
    return present


def _has_few(state: ControllerState, group: int) -> bool:
    """Whether the other members are no majority: they can never leave the node out, and once the replacement
    has begun not even the folder before would be let in again. A group that moves may have the members it
    had before, or those of its target."""
    move = state.moves.get(group)
    ways = (_replicas(state, group),) if move is None else (move.original, move.target)
    return min(map(len, ways)) <= 2


def _replicas(state: ControllerState, group: int) -> tuple[int, ...]:
    topic_id, number = state.places[group]
    return state.topics[topic_id].partitions[number].replicas


def _topic(state: ControllerState, group: int) -> str:
    return state.topics[state.places[group].topic_id].name


def _named(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
    return ", ".join(topics[:_NAMED]) + more


def _invalid(reason: str) -> Refused:
    return Refused(KafkaError.INVALID_REQUEST, reason)


def _over(node: int) -> Refused:
    return _invalid(f"Node {node} is not being replaced by that data folder.")
