"""The commands of the controller and their results, and how an entry of the log holds them.

An entry is one msgpack array: `[kind, field, ...]`. The same rules are checked on the way in and on the way
out: `encode` refuses on the node that makes the mistake what `decode` would stop every replica for. Whatever
a client may send (a bad name, no partitions, an unknown config) passes here and is refused by value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.machine import Corruption

FEATURE_LEVEL = 8
"""The highest feature level this release understands; feature_levels.py says what each brings."""
TOPIC_ID_BYTES = 16
NO_TOPIC_ID = bytes(TOPIC_ID_BYTES)
"""Kafka's null id: no topic ever has it."""
DERIVED = -1
"""For a count that follows from the assignments in the same command, as in Kafka's requests."""
ANY_MOVE = -1
"""In place of a move's `since`, in a report of an earlier release."""


class ControllerOpcode(IntEnum):
    """First element of an entry; a number is never used for anything else."""

    BOOTSTRAP = 1
    REGISTER_NODE = 2
    HEARTBEAT = 3
    FENCE_NODE = 4
    CREATE_TOPIC = 5
    CREATE_PARTITIONS = 6
    DELETE_TOPIC = 7
    ALTER_TOPIC_CONFIGS = 8
    REPLACE_TOPIC_CONFIGS = 9
    ADVANCE_CLUSTER_EPOCH = 10
    ALLOCATE_PRODUCER_IDS = 11
    RAISE_FEATURE_LEVEL = 12
    CHECKPOINT = 13
    SET_COLLECTION = 14
    CREATE_INTERNAL_TOPIC = 15
    REPLACE_NODE = 16
    REPLICAS_LEFT = 17
    REPLICAS_JOINED = 18
    ALTER_GROUP_CONFIGS = 19
    REPLACE_GROUP_CONFIGS = 20
    MOVE_REPLICAS = 21
    REPLICAS_MOVED = 22
    ALTER_SCRAM_CREDENTIALS = 23
    ALTER_ACLS = 24
    APPLY_VIEWS = 25
    DROP_VIEWS = 26
    CANCEL_VIEWS = 27
    START_VIEW_WORKER = 28
    STOP_VIEWS = 29
    PAUSE_VIEWS = 30
    VIEWS_PAUSED = 31
    RESUME_VIEWS = 32
    CUT_OVER_VIEWS = 33
    ALTER_CLIENT_QUOTAS = 34
    SET_DRAINING = 35
    REMOVE_NODE = 36
    ADD_NODE = 37
    SET_BALANCING = 38


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Name the cluster and its incarnation, once. Result: the cluster id.

    The incarnation is what the storage says that it belongs to, so this comes after the storage was claimed.
    The cluster begins at `feature_level`. At 1 the entry ends before it, as in earlier releases.
    """

    cluster_id: str
    incarnation: str
    feature_level: int = 1


@dataclass(frozen=True, slots=True)
class RegisterNode:
    """A process says where it is reached; it then counts as alive. Result: its NodeRegistration.

    `replaces` is the boot id the process found registered under its node id when it started (0: none), so
    that a late registration of a process that is gone cannot displace its successor. Repeating it is safe.
    Times are the proposer's clock in ms. `folder` is the identity of its data folder, and refused if the node
    has another. `listeners` are empty where the configuration names none, and `rack` where it names no rack;
    the entry ends before what is empty at its end, as in earlier releases, whose nodes can read it.
    """

    node: int
    boot_id: int
    replaces: int
    kafka_host: str
    kafka_port: int
    mesh_host: str
    mesh_port: int
    admin_port: int
    min_feature_level: int
    max_feature_level: int
    time: int
    folder: int
    listeners: Sequence[tuple[str, str, int]] = ()
    rack: str = ""


@dataclass(frozen=True, slots=True)
class AddNode:
    """Make a machine a node of the cluster that was none before. Result: how many nodes there are.

    The node counts as dead until it registers, which takes a connection to the others: they learn its address
    from this. The fields are those of its `RegisterNode`. Refused for an id that has, or had, another data
    folder. Repeating it is safe.
    """

    node: int
    boot_id: int
    kafka_host: str
    kafka_port: int
    mesh_host: str
    mesh_port: int
    admin_port: int
    min_feature_level: int
    max_feature_level: int
    time: int
    folder: int
    listeners: Sequence[tuple[str, str, int]] = ()
    rack: str = ""


@dataclass(frozen=True, slots=True)
class SetDraining:
    """Have a node get no more replicas, or let it get some again. Result: how many it has.

    Refused for a node without which a partition's replicas have no room. Repeating it is safe.
    """

    node: int
    draining: bool


@dataclass(frozen=True, slots=True)
class ReplaceNode:
    """Let another data folder take a dead node's place. Result: how many groups must leave it out first.

    The operator's word that the folder before is gone or of no use. Repeating it is safe. One that comes late
    changes nothing: `node_folders.replacing` makes it, with the generation that the folder is to have.
    """

    node: int
    folder: int
    generation: int = 0
    """0: it is not said, as below feature level 7."""


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Forget a dead node without replicas. Result: how many groups have still to leave it out.

    No data folder of it comes back: its id is free for another one, by ReplaceNode. Repeating it is safe. One
    that comes late changes nothing, as with ReplaceNode: `node_folders.removing` makes it.
    """

    node: int
    generation: int = 0
    """0: it is not said, as below feature level 7."""


@dataclass(frozen=True, slots=True)
class ReplicasLeft:
    """Groups have committed members without the node. Result: how many have still to do so.

    `folder` is the one that takes the node's place, 0 if the node is removed.
    """

    node: int
    folder: int
    groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReplicasJoined:
    """Groups have committed members with the node again. Result: how many have still to do so."""

    node: int
    folder: int
    groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class MoveReplicas:
    """Move a partition to other nodes, or cancel its move with None (KIP-455). Result: the Topic.

    Repeating it is safe: a partition that is on its way there, or is there, stays as it is.
    """

    topic_id: bytes
    partition: int
    target: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class ReplicasMoved:
    """Groups have committed exactly the members of their targets. Result: how many moves are left.

    Each names the target and the move's `since`, so that a report that comes late ends no later move, not
    even one to the same nodes. Entries of an earlier release name the target alone, here with `ANY_MOVE`.
    """

    groups: Sequence[tuple[int, Sequence[int], int]]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The process `boot_id` was heard from, which ends a fence. Result: its NodeRegistration."""

    node: int
    boot_id: int
    time: int


@dataclass(frozen=True, slots=True)
class FenceNode:
    """The node was silent too long, or is shutting down. Result: its NodeRegistration as it then is.

    `heard_index` is that of the registration the decision was made on: a node that was heard in the
    meantime is not fenced.
    """

    node: int
    heard_index: int
    time: int


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic under an id drawn by the proposer. Result: the Topic, for a retry as well.

    `assignments` gives each partition's nodes, the preferred leader first; with None the controller
    chooses, otherwise both counts are DERIVED. `made_at` is the log index the proposer had applied when it
    drew the id: it tells a retry after a deletion from a new topic, however late it comes.
    """

    topic_id: bytes
    name: str
    partitions: int
    replication_factor: int
    assignments: Sequence[Sequence[int]] | None
    configs: Sequence[tuple[str, str | None]]
    made_at: int


@dataclass(frozen=True, slots=True)
class CreateInternalTopic:
    """Create a topic of coordinators, if it does not exist. Result: the Topic, created now or before.

    Several nodes may find at the same time that it is missing, each with other counts in its configuration:
    the first of them decides, and the others get what it made.
    """

    topic_id: bytes
    name: str
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """Grow a topic to `count` partitions. Result: the Topic.

    `assignments` are those of the new partitions, or None.
    """

    topic_id: bytes
    count: int
    assignments: Sequence[Sequence[int]] | None


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Result: the Topic as it was. By id, so that a retry never deletes a later topic of the same name."""

    topic_id: bytes


class ConfigOperation(IntEnum):
    """Kafka's numbers for IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One operation on one config of a topic or group."""

    operation: ConfigOperation
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class AlterTopicConfigs:
    """Change some configs of a topic, all or none (IncrementalAlterConfigs). Result: the Topic."""

    topic_id: bytes
    changes: Sequence[ConfigChange]


@dataclass(frozen=True, slots=True)
class ReplaceTopicConfigs:
    """Set these configs of a topic, all others to their defaults (AlterConfigs). Result: the Topic."""

    topic_id: bytes
    configs: Sequence[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class AlterGroupConfigs:
    """Change some configs of a group, all or none. Result: how many it has then."""

    group: str
    changes: Sequence[ConfigChange]


@dataclass(frozen=True, slots=True)
class ReplaceGroupConfigs:
    """Set these configs of a group, and no others. Result: how many it has then."""

    group: str
    configs: Sequence[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class AlterScramCredentials:
    """Change a user's SCRAM credentials, all or none (KIP-554). Result: how many the user has then.

    `deletions` are mechanisms; an upsertion is mechanism, iterations, salt, stored key and server key.
    """

    user: str
    deletions: Sequence[int]
    upsertions: Sequence[tuple[int, int, bytes, bytes, bytes]]


AclRow = tuple[int, str, int, str, str, int, int]
"""The fields of an `Acl`, see acl.py."""


@dataclass(frozen=True, slots=True)
class AlterAcls:
    """Add access control entries and remove others, all or none. Result: how many there are then.

    An entry that is there already, or is not there to be removed, is no fault.
    """

    additions: Sequence[AclRow]
    deletions: Sequence[AclRow]


@dataclass(frozen=True, slots=True)
class AlterClientQuotas:
    """Change an entity's client quotas, all or none (KIP-546). Result: how many the entity has then.

    None for a user, client id or IP address that the entity does not name, "" for Kafka's default; None for a
    quota that goes. Without an address the entry ends before it, as in earlier releases.
    """

    user: str | None
    client_id: str | None
    changes: Sequence[tuple[str, float | None]]
    ip: str | None = None


@dataclass(frozen=True, slots=True)
class AdvanceClusterEpoch:
    """Raise the cluster epoch to `epoch`. Result: the epoch as it then is, higher if it lost a race."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """Give a node producer ids to hand out. Result: a ProducerIdBlock; a retry gets another one."""

    node: int
    count: int


@dataclass(frozen=True, slots=True)
class RaiseFeatureLevel:
    """Allow what needs `level`, if every registered node understands it. Result: the level as it then is."""

    level: int


@dataclass(frozen=True, slots=True)
class ControllerCheckpoint:
    """Hand this entry's state to the publisher, on every replica. Result: the entry's index."""


@dataclass(frozen=True, slots=True)
class SetCollection:
    """Delete no records from storage, or go on. Result: whether that is paused, as it then is.

    In the log, so that it outlives restarts and no node is forgotten.
    """

    paused: bool


@dataclass(frozen=True, slots=True)
class SetBalancing:
    """Have replicas move by themselves until nodes are even, or leave them. Result: whether they do."""

    on: bool


@dataclass(frozen=True, slots=True)
class ApplyViews:
    """Begin to fill a program's next version out of sight. Result: the attempt, this entry's index.

    `nonce` is drawn by the proposer, and tells a retry. A view is its name, its topic's name, an id for the
    topic if a new one is needed, its partitions, and the digest of its sink. What is live already gives the
    attempt of the version that is live.
    """

    program: str
    nonce: int
    text: str
    views: Sequence[tuple[str, str, bytes, int, str]]
    inputs: Sequence[str]
    replication_factor: int
    made_at: int


@dataclass(frozen=True, slots=True)
class DropViews:
    """Forget a program and delete its topics. Result: how many these were; 0 for one that is gone.

    `created` names the very program, so that a retry never drops a later one of the same name.
    """

    program: str
    created: int


@dataclass(frozen=True, slots=True)
class CancelViews:
    """End an attempt, and delete its topics: the live version goes on. Result: how many these were.

    One that has ended already gives 0, unless by its cutover.
    """

    program: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class StartViewWorker:
    """A process begins to run a version, and those before it count no more. Result: the last pause's number.

    `attempt` names the version, `live` says what it is, and `worker` is drawn by the process. Ends a pause:
    what was agreed on in it was agreed on with another process. Refused once the version has gone live: a
    process that still fills it would write topics that readers see. One that comes late, or a second time, is
    refused once yet another process has begun.
    """

    program: str
    attempt: int
    live: bool
    worker: int
    before: int | None = None
    """The process that ran the version until then, 0 for none; None: it is not said, as below feature
    level 8."""


@dataclass(frozen=True, slots=True)
class StopViews:
    """The live version cannot go on, for example for a record that it cannot read. Result: its number.

    `worker` is the process that runs it as the proposer knows it, 0 where none has begun.
    """

    program: str
    attempt: int
    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class PauseViews:
    """Have the live version stop at a cut that is not below `wanted`. Result: the pause's number.

    `attempt` and `worker` are those of the next version, which reads nothing more before the pause.
    """

    program: str
    attempt: int
    worker: int
    wanted: bytes


@dataclass(frozen=True, slots=True)
class ViewsPaused:
    """The live version has stopped at a cut, and commits nothing before the pause ends. Result: its number.

    `attempt` and `worker` are those of the live version.
    """

    program: str
    attempt: int
    worker: int
    pause: int
    reached: bytes


@dataclass(frozen=True, slots=True)
class ResumeViews:
    """End a pause without a cutover: the live version goes on. Result: the last pause's number."""

    program: str
    attempt: int
    pause: int


@dataclass(frozen=True, slots=True)
class CutOverViews:
    """Put the next version in the live one's place, with its topics' names. Result: the version's number.

    Void, by value, unless the pause that it names has not ended. `checkpoint` is the name of its state at the
    cut that the live version reached.
    """

    program: str
    attempt: int
    worker: int
    pause: int
    checkpoint: str


ViewCommand = (
    ApplyViews
    | DropViews
    | CancelViews
    | StartViewWorker
    | StopViews
    | PauseViews
    | ViewsPaused
    | ResumeViews
    | CutOverViews
)
Command = (
    Bootstrap
    | RegisterNode
    | Heartbeat
    | FenceNode
    | CreateTopic
    | CreateInternalTopic
    | CreatePartitions
    | DeleteTopic
    | AlterTopicConfigs
    | ReplaceTopicConfigs
    | AlterGroupConfigs
    | ReplaceGroupConfigs
    | AdvanceClusterEpoch
    | AllocateProducerIds
    | RaiseFeatureLevel
    | ControllerCheckpoint
    | SetCollection
    | SetBalancing
    | ReplaceNode
    | ReplicasLeft
    | ReplicasJoined
    | MoveReplicas
    | ReplicasMoved
    | AlterScramCredentials
    | AlterAcls
    | AlterClientQuotas
    | SetDraining
    | RemoveNode
    | AddNode
    | ViewCommand
)


class ProducerIdBlock(NamedTuple):
    """Producer ids `first .. first + size - 1`, given out only once, ever."""

    first: int
    size: int


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Corruption(f"{value!r} is not a whole number from {low} to {high}")
        return value

    return read


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise Corruption(f"{value!r} is neither true nor false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Corruption(f"{value!r} is not text")
    return value


def _label(value: Any) -> str:
    if not 1 <= len(_text(value)) <= 255:
        raise Corruption(f"{value!r} has no 1 to 255 characters")
    return str(value)


def _topic_id(value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) != TOPIC_ID_BYTES or value == NO_TOPIC_ID:
        raise Corruption(f"{value!r} is not the id of a topic")
    return value


def _internal_topic(value: Any) -> str:
    if _text(value) not in INTERNAL_TOPICS:
        raise Corruption(f"{value!r} is not one of the internal topics")
    return str(value)


def _array(value: Any) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise Corruption(f"{value!r} is not an array")
    return value


def _nodes(value: Any) -> tuple[int, ...]:
    return tuple(_id32(node) for node in _array(value))


def _assignments(value: Any) -> tuple[tuple[int, ...], ...] | None:
    if value is None:
        return None
    return tuple(_nodes(nodes) for nodes in _array(value))


def _config(value: Any) -> tuple[str, str | None]:
    name, text = _array(value)
    return _text(name), None if text is None else _text(text)


def _configs(value: Any) -> tuple[tuple[str, str | None], ...]:
    return tuple(_config(pair) for pair in _array(value))


def _changes(value: Any) -> tuple[ConfigChange, ...]:
    return tuple(
        ConfigChange(ConfigOperation(operation), *_config(pair))
        for operation, *pair in map(_array, _array(value))
    )


_i64 = _whole(-(2**63), 2**63 - 1)
_id32 = _whole(-(2**31), 2**31 - 1)
_count = _whole(0, 2**63 - 1)
_positive = _whole(1, 2**63 - 1)
_node = _whole(1, 2**16 - 1)
_port = _whole(1, 2**16 - 1)


def _mechanisms(value: Any) -> tuple[int, ...]:
    return tuple(_id32(mechanism) for mechanism in _array(value))


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise Corruption(f"{type(value).__name__} is not bytes")
    return value


def _credentials(value: Any) -> tuple[tuple[int, int, bytes, bytes, bytes], ...]:
    return tuple(
        (_id32(mechanism), _id32(iterations), _bytes(salt), _bytes(stored_key), _bytes(server_key))
        for mechanism, iterations, salt, stored_key, server_key in map(_array, _array(value))
    )


MAX_ACLS_AT_ONCE = 1_000
"""Of one command: they are one entry of the log."""


def _acls(value: Any) -> tuple[AclRow, ...]:
    rows = _array(value)
    if len(rows) > MAX_ACLS_AT_ONCE:
        raise Corruption(f"{len(rows)} ACLs are more than {MAX_ACLS_AT_ONCE}")
    return tuple(
        (
            _id32(resource_type),
            _text(name),
            _id32(pattern_type),
            _text(principal),
            _text(host),
            _id32(operation),
            _id32(permission),
        )
        for resource_type, name, pattern_type, principal, host, operation, permission in map(_array, rows)
    )


MAX_QUOTA_CHANGES = 100
"""Of one command; Kafka has four keys."""


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _optional_count(value: Any) -> int | None:
    return None if value is None else _count(value)


def _quota_changes(value: Any) -> tuple[tuple[str, float | None], ...]:
    rows = _array(value)
    if len(rows) > MAX_QUOTA_CHANGES:
        raise Corruption(f"{len(rows)} quotas of one entity are more than {MAX_QUOTA_CHANGES}")
    changes = tuple((_text(key), quota) for key, quota in map(_array, rows))
    for _, quota in changes:
        if quota is not None and type(quota) is not float:
            raise Corruption(f"{quota!r} is not a quota")
    return changes


MAX_RACK = 255
"""Characters of a rack's name."""
MAX_LISTENERS = 16
"""Of one node; Kafka names no bound, and a node of a cluster with several networks has three or four."""


def _listeners(value: Any) -> tuple[tuple[str, str, int], ...]:
    rows = map(_array, _array(value))
    found = tuple((_label(name), _label(host), _port(port)) for name, host, port in rows)
    if len(found) > MAX_LISTENERS or len({name for name, _, _ in found}) < len(found):
        raise Corruption(f"{value!r} are more than {MAX_LISTENERS} listeners, or one of them comes twice")
    return found


def _groups(value: Any) -> tuple[int, ...]:
    return tuple(_count(group) for group in _array(value))


def _target(value: Any) -> tuple[int, ...] | None:
    return None if value is None else _nodes(value)


def _moved(value: Any) -> tuple[tuple[int, tuple[int, ...], int], ...]:
    rows = ([*row, ANY_MOVE] if len(row) == 2 else row for row in map(_array, _array(value)))
    return tuple((_count(group), _nodes(target), _i64(since)) for group, target, since in rows)


MAX_VIEWS: Final = 100
"""Views of a program."""
MAX_PROGRAM_TEXT: Final = 48 * 1024
"""Characters of a program: it is in every snapshot, and must fit the body of a request."""
MAX_REASON: Final = 1000
MAX_CUT_BYTES: Final = 64 * 1024
"""Of a cut as a worker writes it: offsets of some thousands of partitions, and digests."""


def _short(most: int) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if len(_text(value)) > most:
            raise Corruption(f"a text of {len(value)} characters is longer than {most}")
        return str(value)

    return read


def _cut(value: Any) -> bytes:
    if len(_bytes(value)) > MAX_CUT_BYTES:
        raise Corruption(f"a cut of {len(value)} bytes is larger than {MAX_CUT_BYTES}")
    return bytes(value)


def _views(value: Any) -> tuple[tuple[str, str, bytes, int, str], ...]:
    rows = [_array(row) for row in _array(value)]
    if not 1 <= len(rows) <= MAX_VIEWS:
        raise Corruption(f"a program has {len(rows)} views with topics, not 1 to {MAX_VIEWS}")
    return tuple(
        (_label(view), _label(topic), _topic_id(topic_id), _positive(partitions), _label(sink))
        for view, topic, topic_id, partitions, sink in rows
    )


def _inputs(value: Any) -> tuple[str, ...]:
    return tuple(_label(name) for name in _array(value))


_reason = _short(MAX_REASON)
_rack = _short(MAX_RACK)
_Reader = Callable[[Any], Any]
_FORMS: dict[ControllerOpcode, tuple[type[Command], tuple[_Reader, ...]]] = {
    ControllerOpcode.BOOTSTRAP: (Bootstrap, (_label, _label, _positive)),
    ControllerOpcode.REGISTER_NODE: (
        RegisterNode,
        (
            _node,
            _positive,
            _count,
            _label,
            _port,
            _label,
            _port,
            _port,
            _positive,
            _positive,
            _count,
            _positive,
            _listeners,
            _rack,
        ),
    ),
    ControllerOpcode.ADD_NODE: (
        AddNode,
        (
            _node,
            _positive,
            _label,
            _port,
            _label,
            _port,
            _port,
            _positive,
            _positive,
            _count,
            _positive,
            _listeners,
            _rack,
        ),
    ),
    ControllerOpcode.SET_DRAINING: (SetDraining, (_node, _flag)),
    ControllerOpcode.REPLACE_NODE: (ReplaceNode, (_node, _positive, _count)),
    ControllerOpcode.REMOVE_NODE: (RemoveNode, (_node, _count)),
    ControllerOpcode.REPLICAS_LEFT: (ReplicasLeft, (_node, _count, _groups)),
    ControllerOpcode.REPLICAS_JOINED: (ReplicasJoined, (_node, _positive, _groups)),
    ControllerOpcode.MOVE_REPLICAS: (MoveReplicas, (_topic_id, _i64, _target)),
    ControllerOpcode.REPLICAS_MOVED: (ReplicasMoved, (_moved,)),
    ControllerOpcode.HEARTBEAT: (Heartbeat, (_node, _positive, _count)),
    ControllerOpcode.FENCE_NODE: (FenceNode, (_node, _count, _count)),
    ControllerOpcode.CREATE_TOPIC: (
        CreateTopic,
        (_topic_id, _text, _i64, _i64, _assignments, _configs, _count),
    ),
    ControllerOpcode.CREATE_PARTITIONS: (CreatePartitions, (_topic_id, _i64, _assignments)),
    ControllerOpcode.DELETE_TOPIC: (DeleteTopic, (_topic_id,)),
    ControllerOpcode.ALTER_TOPIC_CONFIGS: (AlterTopicConfigs, (_topic_id, _changes)),
    ControllerOpcode.REPLACE_TOPIC_CONFIGS: (ReplaceTopicConfigs, (_topic_id, _configs)),
    ControllerOpcode.ALTER_GROUP_CONFIGS: (AlterGroupConfigs, (_text, _changes)),
    ControllerOpcode.REPLACE_GROUP_CONFIGS: (ReplaceGroupConfigs, (_text, _configs)),
    ControllerOpcode.ALTER_SCRAM_CREDENTIALS: (AlterScramCredentials, (_text, _mechanisms, _credentials)),
    ControllerOpcode.ALTER_ACLS: (AlterAcls, (_acls, _acls)),
    ControllerOpcode.ALTER_CLIENT_QUOTAS: (
        AlterClientQuotas,
        (_optional_text, _optional_text, _quota_changes, _optional_text),
    ),
    ControllerOpcode.APPLY_VIEWS: (
        ApplyViews,
        (_label, _positive, _short(MAX_PROGRAM_TEXT), _views, _inputs, _positive, _count),
    ),
    ControllerOpcode.DROP_VIEWS: (DropViews, (_label, _positive)),
    ControllerOpcode.CANCEL_VIEWS: (CancelViews, (_label, _positive, _reason)),
    ControllerOpcode.START_VIEW_WORKER: (
        StartViewWorker,
        (_label, _positive, _flag, _positive, _optional_count),
    ),
    ControllerOpcode.STOP_VIEWS: (StopViews, (_label, _positive, _count, _reason)),
    ControllerOpcode.PAUSE_VIEWS: (PauseViews, (_label, _positive, _positive, _cut)),
    ControllerOpcode.VIEWS_PAUSED: (ViewsPaused, (_label, _positive, _positive, _positive, _cut)),
    ControllerOpcode.RESUME_VIEWS: (ResumeViews, (_label, _positive, _positive)),
    ControllerOpcode.CUT_OVER_VIEWS: (CutOverViews, (_label, _positive, _positive, _count, _label)),
    ControllerOpcode.ADVANCE_CLUSTER_EPOCH: (AdvanceClusterEpoch, (_positive,)),
    ControllerOpcode.ALLOCATE_PRODUCER_IDS: (AllocateProducerIds, (_node, _positive)),
    ControllerOpcode.RAISE_FEATURE_LEVEL: (RaiseFeatureLevel, (_positive,)),
    ControllerOpcode.CHECKPOINT: (ControllerCheckpoint, ()),
    ControllerOpcode.SET_COLLECTION: (SetCollection, (_flag,)),
    ControllerOpcode.SET_BALANCING: (SetBalancing, (_flag,)),
    ControllerOpcode.CREATE_INTERNAL_TOPIC: (
        CreateInternalTopic,
        (_topic_id, _internal_topic, _positive, _positive),
    ),
}
_KINDS: dict[type[Command], ControllerOpcode] = {command: kind for kind, (command, _) in _FORMS.items()}
_LATER: Final[dict[ControllerOpcode, tuple[Any, ...]]] = {
    ControllerOpcode.BOOTSTRAP: (1,),
    ControllerOpcode.REGISTER_NODE: ((), ""),
    ControllerOpcode.ALTER_CLIENT_QUOTAS: (None,),
    ControllerOpcode.REPLACE_NODE: (0,),
    ControllerOpcode.REMOVE_NODE: (0,),
    ControllerOpcode.START_VIEW_WORKER: (None,),
}
"""Values of the last fields of commands that had fewer in earlier releases. An entry ends before those of its
last fields that have these, so those releases can read it."""


def encode(command: Command) -> bytes:
    """One entry of the log; raises Corruption for what no replica would survive."""
    kind = _KINDS[type(command)]
    if isinstance(command, RaiseFeatureLevel) and command.level > FEATURE_LEVEL:
        raise Corruption(f"feature level {command.level} is unknown here, this release knows {FEATURE_LEVEL}")
    entry = [kind, *(getattr(command, field.name) for field in fields(command))]
    for value in reversed(_LATER.get(kind, ())):
        if (tuple(entry[-1]) if isinstance(value, tuple) else entry[-1]) != value:
            break
        entry.pop()
    try:
        packed: bytes = msgpack.packb(entry)
    except (OverflowError, UnicodeEncodeError) as error:
        raise Corruption(f"{kind.name} cannot be written down: {error}") from error
    decode(packed)
    return packed


def decode(entry: bytes) -> Command:
    """Read an entry back; raises Corruption for anything `encode` does not give."""
    try:
        number, *values = _array(msgpack.unpackb(entry))
        kind = ControllerOpcode(number)
        form, readers = _FORMS[kind]
        later = _LATER.get(kind, ())
        missing = len(readers) - len(values)
        if 0 < missing <= len(later):
            values += later[-missing:]
        command = form(*(read(value) for read, value in zip(readers, values, strict=True)))
    except Exception as error:
        raise Corruption(f"not a command of the controller: {error}") from error
    if isinstance(command, RegisterNode | AddNode) and command.min_feature_level > command.max_feature_level:
        raise Corruption(f"node {command.node} understands no feature level")
    return command


_SECRET: bytes = msgpack.packb([ControllerOpcode.ALTER_SCRAM_CREDENTIALS, "", [], []])[:2]


def is_secret(entry: bytes) -> bool:
    """Whether an entry is only for the nodes' own disks: users' credentials are never published."""
    return entry.startswith(_SECRET)
