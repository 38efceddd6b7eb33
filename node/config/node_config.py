"""Configuration of one node: a TOML file, environment variables and flags, all checked before the start.

Every mistake (an unknown key, a bad unit, an address that would expose an unprotected port) stops the node
with one line that names the place of the value, the key, the mistake, and the text to write instead.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Final, NamedTuple, TypeVar

from strandline.node.config import variables as config_variables
from strandline.node.config.addresses import is_loopback, is_wildcard
from strandline.node.config.authorization import AuthorizationSection
from strandline.node.config.first_user import FirstUser, first_user
from strandline.node.config.listeners import (
    LISTENER_READERS,
    SECTION,
    ListenerSection,
    checked,
    split,
)
from strandline.node.config.money import MonthlyBudget
from strandline.node.config.peers import PEER_READERS, PeerAddress, SeedAddress
from strandline.node.config.ports import PORT_READERS, AdminSection, MeshSection, mistake
from strandline.node.config.quotas import CONNECTION_READERS, QuotasSection
from strandline.node.config.values import KIB, MIB, VALUE_READERS
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.level_zero.money_budget import LONGEST_PUT_SECONDS, MONTH_SECONDS
from strandline.statemachine.controller.controller_state import DEFAULT_LISTENER

__all__ = ["AdminSection", "ConfigError", "MeshSection", "NodeConfig", "PeerAddress", "SeedAddress", "load"]

RENAMED: Final = {"checkpoints.publish_seconds": "checkpoints.interval"}
"""Names of keys in earlier releases, which are still read."""
READERS: Final = (
    VALUE_READERS | PEER_READERS | PORT_READERS | CONNECTION_READERS | {"cluster.first_user": first_user}
)


class ConfigError(ValueError):
    """A configuration that cannot be used; `str()` is one line: where, which key, why, and the cure."""


@dataclass(frozen=True, slots=True)
class NodeSection:
    """This node's id, and the folder of its log."""

    id: int
    data: str
    """Folder of the write-ahead log and the snapshots; one process at a time."""
    rack: str = ""
    """The rack, or availability zone, that the node stands in: replicas lie in different ones first."""


@dataclass(frozen=True, slots=True)
class ClusterSection:
    """Values that are equal on all nodes of a cluster."""

    id: str
    secret: str
    """Proves membership on the mesh; the same random text on all nodes."""
    nodes: tuple[PeerAddress, ...] = ()
    """The nodes that found the cluster; none of a node that joins one by its seeds."""
    epoch_seconds: float = 10.0
    """Time between two advances of the cluster epoch."""
    first_user: FirstUser | None = None
    """A user that is made where there is none."""
    replace_lost_disks: bool = False
    """Whether a node that comes with an empty folder joins as new without `strandline node replace`."""
    seeds: tuple[SeedAddress, ...] = ()
    """Of a node that is added later: where to find the cluster."""


@dataclass(frozen=True, slots=True)
class KafkaSection:
    """Address for Kafka clients. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str = ""
    """Host that clients are told to connect to; empty: the host."""
    advertised_port: int = 0
    """0: the port it listens on."""


@dataclass(frozen=True, slots=True)
class StorageSection:
    """Place of the objects: a folder that all nodes see, or an object store."""

    url: str
    options: dict[str, str] = field(default_factory=dict)
    """Handed to the client of the object store: endpoint, region, keys."""
    volatile: bool = False
    """Whether it is meant that the records are lost when the node stops: allows memory://."""
    requests_budget: MonthlyBudget | None = None
    """For the requests of all nodes together; None for no limit."""
    put_price: float = 5.0
    """Of a million puts, or listings, in the budget's currency; S3's."""
    get_price: float = 0.4


@dataclass(frozen=True, slots=True)
class TopicsSection:
    """Defaults of new topics; a count of 0 replicas stands for 3, or as many nodes as there are."""

    auto_create: bool = True
    partitions: int = 1
    replication_factor: int = 0
    leader_rebalance: bool = True
    """Whether leadership goes back to a partition's first replica by itself once that is well again."""
    leader_rebalance_seconds: float = 5.0
    """Time that the preferred leader must have been healthy before; also the time between two looks."""


@dataclass(frozen=True, slots=True)
class InlineSection:
    """Small batches that go into the log itself, and later to objects. Sizes are bytes."""

    seconds: float = 5.0
    """The longest that a record lies in the nodes' logs alone, as long as the store works."""
    max_batch_bytes: int = 32 * KIB
    """A larger batch goes to an object; 0: all do, and what is inline stays so until it is lifted."""
    partition_bytes_per_second: int = 4 * MIB
    bytes_per_second: int = 16 * MIB
    """So much goes into the log of one partition, and of all that the node leads; more goes to objects."""
    partition_bytes: int = 4 * MIB
    bytes: int = 64 * MIB
    """So much of one partition, and of all that the node leads, may lie in the logs alone."""


@dataclass(frozen=True, slots=True)
class CacheSection:
    """Batches kept in memory, in bytes."""

    written_bytes: int = 24 * MIB
    fetched_bytes: int = 32 * MIB
    level_one_bytes: int = 64 * MIB
    """Blocks and indexes of level-one objects that were read."""


LEAST_CACHE_BYTES: Final = 2 * MIB
"""Bytes that each cache keeps, however short a budget is: the newest records, for consumers at the tail."""
CACHES: Final = 4
PROCESS_BYTES: Final = 72 * MIB
"""Of a node that has some partitions and no load."""
WORKER_BYTES: Final = 48 * MIB
"""Of a level-one worker without a job."""


@dataclass(frozen=True, slots=True)
class MemorySection:
    """Memory of the node and its workers together, in bytes."""

    limit: int | None = None
    """The caches get what the rest leaves of it; None: what [cache] says."""


@dataclass(frozen=True, slots=True)
class ViewsSection:
    """Processes of views."""

    process_bytes: int = 2048 * MIB
    """A version whose process takes more stops, or its filling ends. It is no part of `memory.limit`."""


def least_memory(job_bytes: int) -> int:
    """The smallest `memory.limit` with which a node can work."""
    return PROCESS_BYTES + WORKER_BYTES + job_bytes + CACHES * LEAST_CACHE_BYTES


@dataclass(frozen=True, slots=True)
class CheckpointsSection:
    """Published checkpoints."""

    keep: int = 8
    """So many without a lease each group keeps, the newest."""
    local_share_bits: int = 6
    """Of a local log one key in 2 to this power is told beside a checkpoint."""
    interval: float = 3600.0
    """Seconds between two restore points while anything is written; 0: only `strandline checkpoint` takes
    them."""


@dataclass(frozen=True, slots=True)
class PublishSection:
    """Tails: publications between two checkpoints."""

    seconds: float = 5.0
    """Time within which a committed record can be read from the storage alone; 0: not before a checkpoint."""


@dataclass(frozen=True, slots=True)
class LevelOneSection:
    """Reconciliation of partitions' records from level zero into objects of their own. Sizes are bytes."""

    target_bytes: int = 64 * MIB
    """So much of a partition is one object; a partition that has it is reconciled at once."""
    job_bytes: int = 64 * MIB
    """Maximum bytes of one pass over level-zero objects: the memory it takes."""
    block_bytes: int = 256 * KIB
    """Distance of the entries in an object's index; the least that is read and checked."""
    reconcile_seconds: float = 60.0
    """The longest that a record stays in level zero only, where there is no hurry."""
    merge_count: int = 8
    """So many neighbouring small objects of a like size become one."""
    sweep_seconds: float = 600.0
    """Time between two looks for objects that nothing names."""


@dataclass(frozen=True, slots=True)
class CompactionSection:
    """Local logs of compacted topics. Sizes are bytes."""

    map_bytes: int = 64 * MIB
    """Memory of a round's keys, 32 bytes for each: a round with more keys ends before they are all in."""
    segment_bytes: int = 64 * MIB
    """Largest file of a local log, but for a larger batch."""
    ingest_bytes: int = 4 * MIB
    """So much of level one is taken into a local log at once."""
    ingest_seconds: float = 60.0
    """The longest that a record in level one waits to be taken into the local logs."""


@dataclass(frozen=True, slots=True)
class CollectorSection:
    """Garbage collection of level-zero objects."""

    grace_seconds: float = 60.0
    """Time between the moment when an object could be deleted and its deletion."""
    sweep_seconds: float = 10.0
    deletes_per_second: int = 1000
    """A node deletes no more objects than this, on average."""
    advance_lag_epochs: int = 6
    """An idle partition follows the cluster epoch once it lags so far behind."""


@dataclass(frozen=True, slots=True)
class RetentionSection:
    """When topics' retention.ms and retention.bytes are looked at."""

    check_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class CoordinatorSection:
    """Distribution of groups and transactions over the nodes."""

    partitions: int = 16
    """Of each internal topic, in how many its keys are; decided once, when the topic is created."""


@dataclass(frozen=True, slots=True)
class GroupsSection:
    """Limits of consumer groups. Times are seconds."""

    initial_rebalance_delay_seconds: float = 0.05
    """Time that a group that was empty waits for more members before its first assignment, and again as long
    as members arrive: without it each member of a starting group would cost all others a rebalance. Kafka's 3
    s are for clients that start over minutes; a later member costs one rebalance there too."""
    min_session_seconds: float = 6.0
    max_session_seconds: float = 1800.0
    """The bounds of a classic member's session timeout."""
    max_members: int = 10_000
    """Members of one group."""
    consumer_session_seconds: float = 45.0
    consumer_heartbeat_seconds: float = 5.0
    """Heartbeat interval that members of the KIP-848 protocol are told."""
    consumer_migration_policy: str = "bidirectional"
    """Rule for groups with members that change their protocol: Kafka's group.consumer.migration.policy."""
    offset_retention_seconds: float = 7 * 24 * 3600.0
    """Retention of an empty group's offsets."""


@dataclass(frozen=True, slots=True)
class TransactionsSection:
    """Limits of transactional producers. Times are seconds."""

    max_timeout_seconds: float = 900.0
    """The longest timeout that a producer may ask for."""
    id_expiration_seconds: float = 7 * 24 * 3600.0
    """Retention of an unused transactional id."""


@dataclass(frozen=True, slots=True)
class LogSection:
    """Log that the process writes to its standard error."""

    level: str = "info"
    format: str = "text"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything about one node, checked. Times are seconds, sizes bytes."""

    node: NodeSection
    cluster: ClusterSection
    mesh: MeshSection
    kafka: KafkaSection
    admin: AdminSection
    storage: StorageSection
    topics: TopicsSection
    batching: BatcherConfig
    cache: CacheSection
    log: LogSection
    insecure: bool = False
    checkpoints: CheckpointsSection = CheckpointsSection()
    publish: PublishSection = PublishSection()
    level_one: LevelOneSection = LevelOneSection()
    compaction: CompactionSection = CompactionSection()
    collector: CollectorSection = CollectorSection()
    retention: RetentionSection = RetentionSection()
    coordinator: CoordinatorSection = CoordinatorSection()
    groups: GroupsSection = GroupsSection()
    transactions: TransactionsSection = TransactionsSection()
    inline: InlineSection = InlineSection()
    memory: MemorySection = MemorySection()
    views: ViewsSection = ViewsSection()
    authorization: AuthorizationSection = field(default_factory=AuthorizationSection)
    quotas: QuotasSection = field(default_factory=QuotasSection)
    named_listeners: tuple[ListenerSection, ...] = ()
    """Those of [listeners.<name>], which stand in the place of [kafka]."""
    notes: tuple[str, ...] = ()
    """Notes about the configuration for the operator's log."""

    @property
    def counts_puts(self) -> bool:
        """Whether there is a budget for the store's requests."""
        return self.batching.puts_per_second is not None or self.storage.requests_budget is not None

    @property
    def listeners(self) -> tuple[ListenerSection, ...]:
        """Listeners for Kafka clients: those that are named, or the one of [kafka]."""
        kafka = self.kafka
        own = ListenerSection(
            DEFAULT_LISTENER,
            kafka.host,
            kafka.port,
            kafka.advertised_host,
            kafka.advertised_port,
            section="kafka",
        )
        return self.named_listeners or (own,)


def load(path: str, environ: Mapping[str, str], overrides: Sequence[str]) -> NodeConfig:
    """Read the file, then `STRANDLINE_<SECTION>_<KEY>` variables, then `section.key=value` overrides.

    A variable that is no key and not nearly one is not configuration, and only told of in `notes`. Raises
    ConfigError. A variable's or an override's value is TOML where it parses as such, otherwise text; a
    list may be given as its elements with commas between them.
    """
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}: give --config the path of a TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: this is not TOML: {error}") from None
    given = _Given()
    for name, value in document.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                given.put(path, f"{name}.{key}", inner)
        else:
            given.put(path, name, value)
    if mode & stat.S_IROTH and given.has_secrets:
        given.notes.append(f"every user of this machine may read {path}, which has secrets: chmod 600 it")
    for variable in sorted(environ):
        if variable.startswith(config_variables.PREFIX):
            _take_variable(given, variable, environ[variable])
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override}: there is no '=': write --set section.key=value")
        key = key.strip()
        hidden = any(word in key for word in _SECRET_WORDS)
        shown = " ".join((key if hidden else override).split())
        given.put(f"--set {shown}", key, parsed(text))
    return _build(given)


# Where values come from.

_SECRET_WORDS: Final = ("secret", "key", "token")
"""Parts of names whose values are not told."""


class _Value(NamedTuple):
    source: str
    """The file, variable or flag."""
    value: Any


class _Given:
    """The last value that was given for each key."""

    def __init__(self) -> None:
        self.values: dict[str, _Value] = {}
        self.renamed: dict[str, tuple[str, str]] = {}
        """By key, which name of it the last source gave, if the key was renamed."""
        self.notes: list[str] = []

    @property
    def has_secrets(self) -> bool:
        """Whether a value is one that only the node's user should know."""
        options = self.values.get("storage.options", _Value("", {})).value
        told = isinstance(options, dict) and any(
            word in name.lower() for name in options for word in _SECRET_WORDS
        )
        return told or "cluster.secret" in self.values or "cluster.first_user" in self.values

    def put(self, source: str, key: str, value: Any) -> None:
        if key in RENAMED or key in RENAMED.values():
            name, key = key, RENAMED.get(key, key)
            before = self.renamed.setdefault(key, (source, name))
            if before[0] == source and before[1] != name:
                raise ConfigError(f"{source}: {name} and {before[1]} are one setting: keep {key} alone")
            self.renamed[key] = (source, name)
            if name != key:
                self.notes.append(f"{source}: {name} is now called {key}: use the new name")
        if key.startswith("storage.options."):
            options = self.values.get("storage.options", _Value(source, {})).value
            name = key.removeprefix("storage.options.")
            self.values["storage.options"] = _Value(source, {**options, name: str(value)})
            return
        if key.startswith(f"{SECTION}.") and key.count(".") == 1 and isinstance(value, dict):
            for name, inner in value.items():
                self.put(source, f"{key}.{name}", inner)
            return
        if key.startswith(f"{SECTION}.") and split(key) is None:
            raise ConfigError(
                f"{source}: {key}: there is no such key: write {SECTION}.<name>.<key>, the name in lower "
                f"case and digits, the key one of {', '.join(LISTENER_READERS)}"
            )
        if key not in READERS and split(key) is None:
            near = difflib.get_close_matches(key, READERS, 1) or _namesakes(key)
            cure = f"did you mean {near[0]}?" if near else "remove it, or see docs/operating.md for the keys"
            raise ConfigError(f"{source}: {key}: there is no such key: {cure}")
        self.values[key] = _Value(source, value)

    def section(self, name: str) -> dict[str, Any]:
        """The values given for one section, read and checked."""
        read = {}
        for key, reader in READERS.items():
            section, _, field_name = key.rpartition(".")
            if section == name and key in self.values:
                read[field_name] = self._read(key, reader)
        return read

    def listeners(self) -> tuple[ListenerSection, ...]:
        """The listeners that are named, in the order of their names' first keys."""
        found: dict[str, dict[str, Any]] = {}
        for key in self.values:
            if (parts := split(key)) is not None:
                name, field_name = parts
                found.setdefault(name, {})[field_name] = self._read(key, LISTENER_READERS[field_name])
        return tuple(ListenerSection(name, **values) for name, values in found.items())

    def _read(self, key: str, reader: Callable[[Any], Any]) -> Any:
        source, value = self.values[key]
        try:
            return reader(value)
        except ValueError as error:
            raise ConfigError(f"{source}: {key}: {error}") from None

    def source(self, key: str) -> str:
        return self.values[key].source if key in self.values else "the defaults"


def _namesakes(key: str) -> list[str]:
    return [known for known in READERS if known.rpartition(".")[2] == key.rpartition(".")[2]]


def _take_variable(given: _Given, variable: str, text: str) -> None:
    if config_variables.is_of_a_service(variable, text):
        return
    key = config_variables.key_of(variable, [*READERS, *RENAMED])
    if key is not None:
        given.put(variable, key, parsed(text))
        return
    meant = config_variables.near(variable, READERS)
    if meant is not None:
        raise ConfigError(
            f"{variable}: there is no such key: did you mean {config_variables.PREFIX}{meant.upper()}?"
        )
    given.notes.append(
        f"{variable} is not read: it names no key of the configuration (docs/operating.md has them)"
    )


def parsed(text: str) -> Any:
    """A TOML value; text that is none stands for itself, so that a shell needs no quotes."""
    try:
        value = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return value["value"] if len(value) == 1 else text


# Putting it together.


def _build(given: _Given) -> NodeConfig:
    node = _required(given, NodeSection, "node")
    cluster = _required(given, ClusterSection, "cluster")
    mesh = _mesh(given, node, cluster)
    kafka = KafkaSection(**given.section("kafka"))
    admin = AdminSection(**given.section("admin"))
    storage = _required(given, StorageSection, "storage")
    _check_storage(given, storage, len(cluster.nodes))
    _check_budget(given, storage, len(cluster.nodes))
    topics = TopicsSection(**given.section("topics"))
    if topics.replication_factor > (nodes := len(cluster.nodes)) > 0:
        given.notes.append(
            f"topics.replication_factor: {topics.replication_factor} replicas need as many nodes, and "
            f"cluster.nodes has {nodes}: topics that do not name their own are refused until others have "
            "joined: lower it, or leave it out"
        )
    batching_keys = given.section("batching")
    try:
        batching = BatcherConfig(**batching_keys)
    except ValueError as error:
        sources = {given.source(key) for key in given.values if key.startswith("batching.")}
        raise ConfigError(f"{', '.join(sorted(sources))}: batching: {error}") from None
    inline = InlineSection(**given.section("inline"))
    if "inline.max_batch_bytes" not in given.values:
        inline = replace(inline, max_batch_bytes=min(inline.max_batch_bytes, batching.max_object_bytes))
    if inline.max_batch_bytes > batching.max_object_bytes:
        raise ConfigError(
            f"{given.source('inline.max_batch_bytes')}: inline.max_batch_bytes may not be above "
            f"batching.max_object_bytes, {batching.max_object_bytes}: what goes inline is stored later"
        )
    insecure = bool(given.section("").get("insecure", False))
    listeners = given.listeners()
    _check_listeners(given, listeners, insecure)
    if not insecure and not is_loopback(kafka.host):
        raise ConfigError(
            f"{given.source('kafka.host')}: kafka.host: {kafka.host} can be reached from other machines, and "
            "there is no TLS: use [listeners.<name>], listen on 127.0.0.1, or set insecure = true if every "
            "machine that reaches it is trusted"
        )
    if (wrong := mistake(mesh, admin, insecure=insecure)) is not None:
        raise ConfigError(f"{given.source(wrong.partition(': ')[0])}: {wrong}")
    _check_advertised(given, kafka)
    cache, log = CacheSection(**given.section("cache")), LogSection(**given.section("log"))
    level_one = LevelOneSection(**given.section("level_one"))
    if not level_one.block_bytes <= level_one.target_bytes <= level_one.job_bytes:
        sources = {given.source(key) for key in given.values if key.startswith("level_one.")}
        raise ConfigError(
            f"{', '.join(sorted(sources))}: level_one: block_bytes may not be above target_bytes, nor that "
            "above job_bytes: raise job_bytes, or lower the others"
        )
    memory = MemorySection(**given.section("memory"))
    least = least_memory(level_one.job_bytes)
    if memory.limit is not None and memory.limit < least:
        raise ConfigError(
            f"{given.source('memory.limit')}: memory.limit: {memory.limit} bytes are too few: a node takes "
            f"{PROCESS_BYTES // MIB} MiB, its level-one worker {WORKER_BYTES // MIB} MiB and "
            f"level_one.job_bytes ({level_one.job_bytes // MIB} MiB), and {CACHES} caches "
            f"{LEAST_CACHE_BYTES // MIB} MiB each: set {-(-least // MIB)}MiB or more, or lower "
            "level_one.job_bytes"
        )
    compaction = CompactionSection(**given.section("compaction"))
    if compaction.ingest_bytes > compaction.segment_bytes:
        sources = {given.source(key) for key in given.values if key.startswith("compaction.")}
        raise ConfigError(
            f"{', '.join(sorted(sources))}: compaction: ingest_bytes may not be above segment_bytes: lower "
            "it, or raise the other"
        )
    groups = GroupsSection(**given.section("groups"))
    if groups.min_session_seconds > groups.max_session_seconds:
        sources = {given.source(key) for key in given.values if key.startswith("groups.")}
        raise ConfigError(
            f"{', '.join(sorted(sources))}: groups: min_session_seconds may not be above "
            "max_session_seconds: lower it, or raise the other"
        )
    authorization = AuthorizationSection(**given.section("authorization"))
    for key in ("super_users", "allow_everyone_if_no_acl_found"):
        if not authorization.enabled and f"authorization.{key}" in given.values:
            raise ConfigError(
                f"{given.source(f'authorization.{key}')}: authorization.{key}: nothing is authorized without "
                "authorization.enabled = true: set it, or leave this out"
            )
    if authorization.enabled and not admin.logins:
        given.notes.append(
            "authorization.enabled says what clients may do on Kafka's ports alone: the HTTP API, on "
            f"{admin.host}, asks for no login (admin.logins), and every process that reaches it may make and "
            "drop views with their topics, abort transactions and pause collecting: let trusted processes "
            "reach it only (docs/security.md)"
        )
    return NodeConfig(
        node,
        cluster,
        mesh,
        kafka,
        admin,
        storage,
        topics,
        batching,
        cache,
        log,
        insecure,
        CheckpointsSection(**given.section("checkpoints")),
        PublishSection(**given.section("publish")),
        level_one,
        compaction,
        CollectorSection(**given.section("collector")),
        RetentionSection(**given.section("retention")),
        CoordinatorSection(**given.section("coordinator")),
        groups,
        TransactionsSection(**given.section("transactions")),
        inline,
        memory,
        ViewsSection(**given.section("views")),
        authorization,
        QuotasSection(**given.section("quotas")),
        listeners,
        tuple(given.notes),
    )


def _mesh(given: _Given, node: NodeSection, cluster: ClusterSection) -> MeshSection:
    """The mesh's address, of the node's place in cluster.nodes or, with seeds, of its own keys."""
    values = given.section("mesh")
    if bool(cluster.nodes) is bool(cluster.seeds):
        said = "cluster.seeds: cluster.nodes is set too" if cluster.nodes else "cluster.nodes is not set"
        raise ConfigError(
            f"{said}: write cluster.nodes for the nodes that found a cluster, cluster.seeds for a node that "
            "joins one that runs"
        )
    if cluster.seeds:
        for key in ("host", "port"):
            if key not in values:
                raise ConfigError(
                    f"mesh.{key} is not set, and no cluster.nodes says it: write {key} = … under [mesh]"
                )
        mesh = MeshSection(**values)
        if is_wildcard(mesh.told[0]):
            raise ConfigError(
                f"{given.source('mesh.host')}: mesh.host: other nodes would be told to connect to "
                f"{mesh.told[0]}, which is not a machine's address: set mesh.advertised_host to the name or "
                "address at which they reach this node"
            )
        return mesh
    me = next((peer for peer in cluster.nodes if peer.id == node.id), None)
    if me is None:
        ids = ", ".join(str(peer.id) for peer in cluster.nodes)
        raise ConfigError(
            f"{given.source('node.id')}: node.id: {node.id} is none of cluster.nodes ({ids}), which "
            "found the cluster: add it there, on all nodes, if the cluster is new; where it runs, name these "
            "addresses as cluster.seeds instead"
        )
    for key in ("advertised_host", "advertised_port"):
        if key in values:
            raise ConfigError(
                f"{given.source(f'mesh.{key}')}: mesh.{key}: cluster.nodes says it: correct it there, or "
                "leave this out"
            )
    values = {"host": me.host, "port": me.port, **values}
    return MeshSection(**values, advertised_host=me.host, advertised_port=me.port)


def _check_storage(given: _Given, storage: StorageSection, nodes: int) -> None:
    """Raise ConfigError for storage that would lose acknowledged records, unless that is meant."""
    if not storage.url.startswith("memory:"):
        return
    source = f"{given.source('storage.url')}: storage.url"
    if not storage.volatile:
        raise ConfigError(
            f"{source}: {storage.url} keeps every record in this process's memory, and all are lost when it "
            "stops: name a folder or a bucket, or set storage.volatile = true if that is meant"
        )
    if nodes != 1:
        others = f"the other {nodes - 1} of cluster.nodes" if nodes else "the nodes of cluster.seeds"
        raise ConfigError(
            f"{source}: {storage.url} is the memory of one process, and {others} "
            "cannot read it: name a folder that all nodes see, or a bucket"
        )


def _check_budget(given: _Given, storage: StorageSection, nodes: int) -> None:
    """Raise ConfigError for a budget below what a node spends whatever its budget is."""
    budget = storage.requests_budget
    if budget is None:
        return
    sweep = CollectorSection(**given.section("collector")).sweep_seconds
    least = max(nodes, 1) * MONTH_SECONDS * (1 / LONGEST_PUT_SECONDS + 1 / sweep) * storage.put_price * 1e-6
    if budget.amount < least:
        raise ConfigError(
            f"{given.source('storage.requests_budget')}: storage.requests_budget: {budget} does not pay for "
            f"a put in {LONGEST_PUT_SECONDS:g} s and a listing in collector.sweep_seconds of each of "
            f"{max(nodes, 1)} nodes, and so many are made whatever is configured: "
            f'write "{least:.2f} {budget.currency}/month" or more, correct storage.put_price, or leave it out'
        )


def _check_listeners(given: _Given, listeners: tuple[ListenerSection, ...], insecure: bool) -> None:
    """Raise ConfigError if the named listeners cannot be, beside each other or beside [kafka]."""
    if not listeners:
        return
    for key in given.values:
        if key.startswith("kafka."):
            raise ConfigError(
                f"{given.source(key)}: {key}: there are [listeners.<name>], and [kafka] is not read: move it "
                f"to the section of a listener, like listeners.{listeners[0].name}, or leave it out"
            )
    mistake = checked(listeners, insecure=insecure)
    if mistake is not None:
        raise ConfigError(f"{given.source(mistake.partition(': ')[0])}: {mistake}")


def _check_advertised(given: _Given, kafka: KafkaSection) -> None:
    """Raise ConfigError if clients would be told an address that none can connect to."""
    for key, host in (("advertised_host", kafka.advertised_host), ("host", kafka.host)):
        if host and is_wildcard(host):
            raise ConfigError(
                f"{given.source(f'kafka.{key}')}: kafka.{key}: clients would be told to connect to {host}, "
                "which is not a machine's address: set kafka.advertised_host to the name or address at which "
                "they reach this node"
            )
        if kafka.advertised_host:
            return


_Section = TypeVar("_Section", NodeSection, ClusterSection, StorageSection)


def _required(given: _Given, section: type[_Section], name: str) -> _Section:
    values = given.section(name)
    for each in fields(section):
        if each.name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{name}.{each.name} is not set: write {each.name} = … under [{name}]")
    return section(**values)
