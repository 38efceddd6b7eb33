"""Nodes and what belongs to the cluster as a whole: registrations, liveness, producer ids, feature level.

Liveness is decided by the controller's leader, on its own clock; the log holds only what it decided. Every
decision names what it was made on, so one that was overtaken changes nothing.
"""

from __future__ import annotations

from strandline.statemachine.controller.controller_commands import (
    FEATURE_LEVEL,
    AddNode,
    AllocateProducerIds,
    Bootstrap,
    FenceNode,
    Heartbeat,
    ProducerIdBlock,
    RaiseFeatureLevel,
    RegisterNode,
    SetBalancing,
    SetDraining,
)
from strandline.statemachine.controller.controller_state import (
    REMOVED,
    ControllerState,
    ListenerAddress,
    NodeFolder,
    NodeRegistration,
)
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Corruption

MAX_BLOCK = 1_000_000
"""Producer ids in one block; there are 2**63 in all."""
_NAMED = 5
"""Topics that a refusal names; the rest is counted."""


NodeCommand = (
    Bootstrap
    | AddNode
    | RegisterNode
    | Heartbeat
    | FenceNode
    | SetDraining
    | SetBalancing
    | AllocateProducerIds
    | RaiseFeatureLevel
)


def apply(
    state: ControllerState, index: int, command: NodeCommand
) -> NodeRegistration | ProducerIdBlock | int | str | Refused:
    """Do what a command says, or refuse it and change nothing."""
    match command:
        case Bootstrap():
            return _bootstrap(state, index, command)
        case AddNode():
            return _add(state, index, command)
        case RegisterNode():
            return _register(state, index, command)
        case Heartbeat():
            return _heartbeat(state, index, command)
        case FenceNode():
            return _fence(state, index, command)
        case SetDraining():
            return _set_draining(state, index, command)
        case SetBalancing():
            state.balancing = command.on
            return command.on
        case AllocateProducerIds():
            return _allocate_producer_ids(state, command)
        case RaiseFeatureLevel():
            return _raise_feature_level(state, index, command)


def _bootstrap(state: ControllerState, index: int, command: Bootstrap) -> str | Refused:
    """Name the cluster, unless it has another name already."""
    if command.feature_level > FEATURE_LEVEL:
        raise _unknown_level(index, command.feature_level)
    if state.cluster_id is None:
        state.cluster_id, state.incarnation = command.cluster_id, command.incarnation
        state.feature_level = max(state.feature_level, command.feature_level)
        state.version = index
    if state.cluster_id != command.cluster_id:
        reason = f"This is cluster {state.cluster_id}, not {command.cluster_id}."
        return Refused(KafkaError.INCONSISTENT_CLUSTER_ID, reason)
    return state.cluster_id


def _add(state: ControllerState, index: int, command: AddNode) -> int | Refused:
    """Make a machine a node; it is heard only when it registers.

    One that has the id already, by its data folder, may say where it listens now while it counts as dead:
    else nodes with higher ids, which dial it, would not find it.
    """
    node, folder = command.node, state.folders.get(command.node)
    known = state.nodes.get(node)
    if folder is not None and folder.folder == command.folder and known is not None:
        address = command.mesh_host, command.mesh_port
        if known.fenced and (known.mesh_host, known.mesh_port) != address:
            state.put_node(known._replace(mesh_host=address[0], mesh_port=address[1]))
            state.version = index
        return len(state.nodes)
    if folder is not None and folder.folder != command.folder:
        had = f"has data folder {folder.folder:016x}"
        if folder.folder == REMOVED:
            had = "was removed from this cluster"
        reason = (
            f"Node {node} {had}: give the new machine a node.id that no other has, or had, or let it take"
            f" that node's place with `strandline node replace {node}`."
        )
        return Refused(KafkaError.INVALID_REGISTRATION, reason)
    refused = _not_understood(state, command)
    if refused is not None:
        return refused
    state.time = max(state.time, command.time)
    state.put_node(_registration(command, index, state.time, fenced=True))
    state.folders.setdefault(node, NodeFolder(1, command.folder))
    state.version = index
    return len(state.nodes)


def _not_understood(state: ControllerState, command: AddNode | RegisterNode) -> Refused | None:
    """The refusal of a node whose release does not understand the cluster's feature level."""
    if command.min_feature_level <= state.feature_level <= command.max_feature_level:
        return None
    reason = (
        f"Node {command.node} understands feature levels {command.min_feature_level} to "
        f"{command.max_feature_level}, the cluster is at {state.feature_level}: install a release that "
        "understands it."
    )
    return Refused(KafkaError.UNSUPPORTED_VERSION, reason)


def _registration(
    command: AddNode | RegisterNode, index: int, time: int, *, fenced: bool
) -> NodeRegistration:
    return NodeRegistration(
        command.node,
        command.boot_id,
        command.kafka_host,
        command.kafka_port,
        command.mesh_host,
        command.mesh_port,
        command.admin_port,
        command.min_feature_level,
        command.max_feature_level,
        fenced,
        index,
        time,
        tuple(ListenerAddress(*one) for one in command.listeners),
        command.rack,
    )


def _register(state: ControllerState, index: int, command: RegisterNode) -> NodeRegistration | Refused:
    """Put a process in the place of the one it knows it replaces."""
    known = state.nodes.get(command.node)
    present = known.boot_id if known else 0
    if present not in (command.boot_id, command.replaces):
        reason = (
            f"Node {command.node} is registered with boot id {present}, not {command.replaces}: another "
            "process of this node registered in between."
        )
        return Refused(KafkaError.STALE_BROKER_EPOCH, reason)
    folder = state.folders.get(command.node)
    if folder is not None and folder.folder == REMOVED:
        reason = (
            f"Node {command.node} was removed from this cluster: start it with an empty data folder, and let"
            f" that in with `strandline node replace {command.node}`."
        )
        return Refused(KafkaError.INVALID_REGISTRATION, reason)
    if folder is not None and folder.folder != command.folder:
        reason = (
            f"Node {command.node} has data folder {folder.folder:016x}, not {command.folder:016x}: bring it"
            f" back, or let the new one in with `strandline node replace {command.node}`."
        )
        return Refused(KafkaError.INVALID_REGISTRATION, reason)
    refused = _not_understood(state, command)
    if refused is not None:
        return refused
    state.time = max(state.time, command.time)
    registration = _registration(command, index, state.time, fenced=False)
    state.put_node(registration)
    state.folders.setdefault(command.node, NodeFolder(1, command.folder))
    state.version = index
    return registration


def _heartbeat(state: ControllerState, index: int, command: Heartbeat) -> NodeRegistration | Refused:
    """Note that a process was heard; its node counts as alive from here on."""
    known = state.nodes.get(command.node)
    if known is None:
        return _not_registered(command.node)
    if known.boot_id != command.boot_id:
        reason = f"Node {command.node} is registered with boot id {known.boot_id}, not {command.boot_id}."
        return Refused(KafkaError.STALE_BROKER_EPOCH, reason)
    replacement = state.replacement
    if replacement is not None and (replacement.node, replacement.boot_id) == (command.node, command.boot_id):
        reason = f"Node {command.node} is being replaced: that process does not count any more."
        return Refused(KafkaError.STALE_BROKER_EPOCH, reason)
    state.time = max(state.time, command.time)
    registration = known._replace(fenced=False, heard_index=index, heard_time=state.time)
    state.put_node(registration)
    if known.fenced:
        state.version = index
    return registration


def _fence(state: ControllerState, index: int, command: FenceNode) -> NodeRegistration | Refused:
    """Count a node as dead, unless it was heard since the decision was made."""
    known = state.nodes.get(command.node)
    if known is None:
        return _not_registered(command.node)
    if command.heard_index > known.heard_index:
        raise Corruption(f"entry {index}: node {command.node} was not heard at {command.heard_index}")
    state.time = max(state.time, command.time)
    if known.fenced or known.heard_index != command.heard_index:
        return known
    registration = known._replace(fenced=True)
    state.put_node(registration)
    state.version = index
    return registration


def _allocate_producer_ids(state: ControllerState, command: AllocateProducerIds) -> ProducerIdBlock | Refused:
    """Take the next producer ids, whatever became of earlier blocks."""
    if command.node not in state.nodes:
        return _not_registered(command.node)
    if command.count > MAX_BLOCK:
        reason = f"{command.count} producer ids are too many for a block, ask for {MAX_BLOCK} at most."
        return Refused(KafkaError.INVALID_REQUEST, reason)
    if state.next_producer_id + command.count > 2**63 - 1:
        return Refused(KafkaError.UNKNOWN_SERVER_ERROR, "All producer ids have been used.")
    block = ProducerIdBlock(state.next_producer_id, command.count)
    state.next_producer_id += command.count
    return block


def _raise_feature_level(state: ControllerState, index: int, command: RaiseFeatureLevel) -> int | Refused:
    """Let entries and snapshots use what `level` brings; there is no way back."""
    refused = level_refused(state, command)
    if refused is not None:
        return refused
    if command.level > FEATURE_LEVEL:
        raise _unknown_level(index, command.level)
    if command.level > state.feature_level:
        state.feature_level = command.level
        state.version = index
    return state.feature_level


def level_refused(state: ControllerState, command: RaiseFeatureLevel) -> Refused | None:
    """The refusal that raising the level now would give; changes nothing."""
    if command.level < state.feature_level:
        reason = (
            f"The cluster is at feature level {state.feature_level}, it cannot go back to {command.level}."
        )
        return Refused(KafkaError.INVALID_UPDATE_VERSION, reason)
    for node, registration in state.nodes.items():
        if command.level > registration.max_feature_level:
            reason = (
                f"Node {node} understands feature levels up to {registration.max_feature_level}, not "
                f"{command.level}: upgrade it first."
            )
            return Refused(KafkaError.FEATURE_UPDATE_FAILED, reason)
    return None


def _set_draining(state: ControllerState, index: int, command: SetDraining) -> int | Refused:
    """Have a node get no more replicas, or let it get some again; how many it has."""
    node = command.node
    if node not in state.nodes:
        return _not_registered(node)
    if command.draining and node not in state.draining:
        refused = _no_room(state, node)
        if refused is not None:
            return refused
    if command.draining != (node in state.draining):
        (state.draining.add if command.draining else state.draining.remove)(node)
        state.version = index
    return len(state.hosted.get(node, ()))


def _no_room(state: ControllerState, node: int) -> Refused | None:
    """The refusal of a drain after which the other nodes are too few for a partition's replicas."""
    others = len(state.racks().keys() - {node})
    wanted: dict[str, int] = {}
    for group in state.hosted.get(node, ()):
        place = state.places[group]
        topic = state.topics[place.topic_id]
        move = state.moves.get(group)
        replicas = topic.partitions[place.partition].replicas if move is None else move.target
        if node in replicas and len(replicas) > others:
            wanted[topic.name] = len(replicas)
    if not wanted:
        return None
    few = ", ".join(f"{name} ({count})" for name, count in sorted(wanted.items())[:_NAMED])
    more = f" and {len(wanted) - _NAMED} more" if len(wanted) > _NAMED else ""
    reason = (
        f"Node {node} cannot be drained: topics have more replicas than the {others} other node(s) that are "
        f"alive and not drained: {few}{more}. Start or add a node, or lower their replication factor."
    )
    return Refused(KafkaError.INVALID_REQUEST, reason)


def _unknown_level(index: int, level: int) -> Corruption:
    return Corruption(
        f"entry {index} raises the feature level to {level}, this release understands {FEATURE_LEVEL}: "
        "upgrade this node"
    )


def _not_registered(node: int) -> Refused:
    return Refused(KafkaError.BROKER_ID_NOT_REGISTERED, f"Node {node} is not registered.")
