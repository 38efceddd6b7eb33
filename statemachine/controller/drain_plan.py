"""The moves that empty nodes which are drained: a pure function of the state, so it goes on after any crash.

Each replica goes to a node that may get some: to a rack with the fewest other replicas of the partition,
there to the node with the fewest replicas of the topic, then of all. The new replica has the old one's place
in the order, so it is the preferred leader where that was.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.statemachine.controller.controller_commands import MoveReplicas
from strandline.statemachine.controller.controller_state import ControllerState, Move, Topic
from strandline.statemachine.controller.replica_moves import below_minimum


class Staying(NamedTuple):
    """The replicas of a drained node that do not move for now."""

    without_room: int = 0
    """Those that no other node can take: each node that may get some has one of the partition."""
    below_minimum: tuple[str, ...] = ()
    """Topics of others, by name: a move is refused to fewer replicas than their min.insync.replicas."""
    without_majority: tuple[str, ...] = ()
    """Topics of partitions without a majority of live replicas, which cannot change their members."""


def moves(state: ControllerState, at_once: int) -> list[MoveReplicas]:
    """The moves to begin with now, so that at most `at_once` of the cluster's are under way.

    Partitions that move already wait for their turn, and those that `staying` tells of stay. A move to a
    node that is drained by now gets another target. One to a node that is dead waits for it, or for an
    operator, and keeps no other from its turn.
    """
    under_way = sum(not _waits_for_dead(state, move) for move in state.moves.values())
    leaving = sorted({group for node in state.draining for group in state.hosted.get(node, ())})
    racks = state.racks()
    total = {node: load.replicas for node, load in state.loads().items()}
    held: dict[bytes, dict[int, int]] = {}
    planned: list[MoveReplicas] = []
    for group in leaving:
        if under_way + len(planned) >= at_once:
            break
        present = state.moves.get(group)
        if present is not None and state.draining.isdisjoint(_joining(present)):
            continue
        place = state.places[group]
        topic = state.topics[place.topic_id]
        of_topic = held.setdefault(topic.topic_id, _held(topic))
        before = topic.partitions[place.partition].replicas if present is None else present.target
        replicas = list(before)
        if below_minimum(topic, replicas):
            continue
        for position, node in enumerate(replicas):
            if node not in state.draining:
                continue
            others = [other for other in replicas if other not in state.draining]
            free = [other for other in racks if other not in replicas]
            if not free:
                continue
            chosen = min(
                free,
                key=lambda one: (
                    sum(racks.get(other) == racks[one] for other in others),
                    of_topic.get(one, 0),
                    total[one],
                    one,
                ),
            )
            replicas[position] = chosen
            of_topic[chosen] = of_topic.get(chosen, 0) + 1
            total[chosen] += 1
        if tuple(replicas) != before:
            planned.append(MoveReplicas(topic.topic_id, place.partition, tuple(replicas)))
    return planned


def staying(state: ControllerState) -> dict[int, Staying]:
    """By drained node, what stays for now.

    A drain begins only where there is room, and other nodes may have gone since.
    """
    may_get = state.racks().keys()
    found: dict[int, Staying] = {}
    for node in state.draining:
        without_room, below, stuck = 0, set(), set()
        for group in state.hosted.get(node, ()):
            place = state.places[group]
            topic = state.topics[place.topic_id]
            replicas = topic.partitions[place.partition].replicas
            alive = sum(one in state.nodes and not state.nodes[one].fenced for one in replicas)
            if alive <= len(replicas) // 2:
                stuck.add(topic.name)
            elif group in state.moves:
                continue
            elif below_minimum(topic, replicas):
                below.add(topic.name)
            elif may_get <= set(replicas):
                without_room += 1
        if without_room or below or stuck:
            found[node] = Staying(without_room, tuple(sorted(below)), tuple(sorted(stuck)))
    return found


def _joining(move: Move) -> set[int]:
    return set(move.target).difference(move.original)


def _waits_for_dead(state: ControllerState, move: Move) -> bool:
    return any(node not in state.nodes or state.nodes[node].fenced for node in _joining(move))


def _held(topic: Topic) -> dict[int, int]:
    counts: dict[int, int] = {}
    for partition in topic.partitions:
        for node in partition.replicas:
            counts[node] = counts.get(node, 0) + 1
    return counts
