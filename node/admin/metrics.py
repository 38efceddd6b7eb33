"""Reads a node's counters at each scrape: nothing is kept twice, nothing is counted for this alone."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from itertools import product
from typing import TYPE_CHECKING

from strandline.node.admin import (
    collection_metrics,
    compaction_metrics,
    group_metrics,
    inline_metrics,
    memory_metrics,
    publication_metrics,
    view_metrics,
)
from strandline.node.admin.exposition import Page, label
from strandline.node.admin.health import REASONS, problems, status
from strandline.node.admin.loop_lag import LoopLag
from strandline.node.admin.metric_names import METRICS
from strandline.node.admin.node_views import collectable_epoch, coordinated_keys
from strandline.node.admin.process import process_state
from strandline.node.admin.replica_sources import PartitionSource
from strandline.node.admin.source import AdminSource
from strandline.node.kafka.wire.server_config import CloseReason
from strandline.node.objectstore.retries import RetryingStore
from strandline.node.raft.campaigns import Cause
from strandline.node.raft.mesh.problems import MeshReason
from strandline.node.raft.pysyncobj_seam import CANDIDATE, FOLLOWER, LEADER
from strandline.node.raft.rank import Rank
from strandline.node.runtime.slices import Slices
from strandline.node.tls.keeper import TlsKeeper
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.internal_topics import GROUPS_KIND, TRANSACTIONS_KIND
from strandline.statemachine.partition.epoch_window import WindowCounters

if TYPE_CHECKING:
    from strandline.node.oauth.bearer_tokens import BearerTokens

_ROLES = {LEADER: "leader", FOLLOWER: "follower", CANDIDATE: "candidate"}
_DROPS = ("not_connected", "too_big", "backlogged")
_NOTHING_COUNTED = WindowCounters()


class Metrics:
    """The page of one node; `answered` counts HTTP answers by their code, `tls` and `tokens` are HTTP's."""

    def __init__(
        self,
        source: AdminSource,
        lag: LoopLag,
        answered: Counter[int],
        tls: TlsKeeper | None = None,
        tokens: BearerTokens | None = None,
    ) -> None:
        self._source = source
        self._lag = lag
        self._answered = answered
        self._tls = tls
        self._tokens = tokens
        self._version = version("strandline")

    async def page(self) -> bytes:
        """All samples as text, gathered in slices."""
        page, slices = Page(METRICS), Slices()
        self._process(page)
        self._kafka(page)
        self._batcher(page)
        inline_metrics.inline(page, self._source)
        self._reader(page)
        memory_metrics.memory(page, self._source)
        memory_metrics.money(page, self._source)
        collection_metrics.level_one(page, self._source)
        compaction_metrics.compaction(page, self._source)
        await collection_metrics.collection(page, self._source, slices)
        await compaction_metrics.removal(page, self._source, slices)
        await self._raft(page, slices)
        self._log(page)
        self._mesh(page)
        await self._controller(page, slices)
        self._coordinators(page)
        publication_metrics.published(page, self._source)
        view_metrics.views(page, self._source)
        partitions = replicas(self._source)
        await group_metrics.groups(page, self._source, partitions, slices)
        for partition in partitions:
            _partition(page, self._source, partition)
            await slices.breathe()
        return await page.text(slices)

    def _process(self, page: Page) -> None:
        source, state = self._source, process_state()
        page.add("process_cpu_seconds_total", state.cpu_seconds)
        page.add("process_resident_memory_bytes", state.resident_bytes)
        page.add("process_start_time_seconds", state.started)
        if state.open_files is not None:
            page.add("process_open_fds", state.open_files)
        names = (label("node", source.node_id), label("cluster", source.host.cluster_id))
        page.add("strandline_node_info", 1, ",".join((*names, label("version", self._version))))
        found = problems(source)
        page.add("strandline_healthy", int(status(found) != "unhealthy"))
        counts = {problem.reason: problem.number for problem in found}
        for reason in REASONS:
            page.add("strandline_problems", counts.get(reason, 0), label("reason", reason))
        page.add_histogram("strandline_event_loop_lag_seconds", self._lag.seconds)
        for part, seconds in sorted(self._lag.held.seconds.items()):
            page.add("strandline_event_loop_held_seconds_total", seconds, label("part", part))
        for part, seconds in sorted(self._lag.held.longest.items()):
            page.add("strandline_event_loop_held_longest_seconds", seconds, label("part", part))
        for code, count in sorted(self._answered.items()):
            page.add("strandline_http_requests_total", count, label("code", code))
        if self._tls is not None and (end := self._tls.not_after) is not None:
            page.add("strandline_http_certificate_end_seconds", end)
        if self._tokens is not None:
            for result, count in self._tokens.key_reads.items():
                page.add("strandline_http_token_key_reads_total", count, label("result", result))

    def _kafka(self, page: Page) -> None:
        kafka = self._source.kafka
        page.add("strandline_kafka_connections", kafka.connections)
        page.add("strandline_kafka_connections_opened_total", kafka.counters["connections"])
        for reason in CloseReason:
            count = kafka.counters[f"closed_{reason}"]
            page.add("strandline_kafka_connections_closed_total", count, label("reason", reason))
        for result in ("done", "failed"):
            count = kafka.handshakes[result]
            page.add("strandline_kafka_tls_handshakes_total", count, label("result", result))
        page.add("strandline_kafka_logins_total", kafka.counters["logins"])
        throttles = self._source.throttles
        for (quota, entity), count in throttles.throttled.items():
            labels = f"{label('quota', quota)},{label('entity', entity)}"
            page.add("strandline_kafka_throttled_total", count, labels)
            page.add("strandline_kafka_throttled_seconds_total", throttles.seconds[quota, entity], labels)
        page.add("strandline_kafka_logging_in", kafka.logging_in)
        page.add("strandline_kafka_connections_waiting", kafka.quotas.waiting)
        page.add("strandline_kafka_connections_waited_total", kafka.quotas.waited)
        for listener, not_after in kafka.certificates.items():
            page.add("strandline_kafka_certificate_end_seconds", not_after, label("listener", listener))
        for listener, reads in kafka.key_reads.items():
            for result, count in reads.items():
                labels = f"{label('listener', listener)},{label('result', result)}"
                page.add("strandline_kafka_token_key_reads_total", count, labels)
        fetches = self._source.fetches
        page.add("strandline_kafka_fetch_partitions", fetches.partitions)
        page.add("strandline_kafka_fetch_sessions", fetches.sessions)
        page.add("strandline_kafka_requests_total", kafka.counters["requests"])
        page.add("strandline_kafka_request_bytes", kafka.request_bytes)

    def _batcher(self, page: Page) -> None:
        batcher = self._source.batcher
        measures = batcher.measures
        objects = {"stored": measures.objects_stored, "failed": measures.objects_failed}
        for result, count in objects.items():
            page.add("strandline_batcher_objects_total", count, label("result", result))
        batches = {
            "stored": measures.batches_stored,
            "failed": measures.batches_failed,
            "refused": measures.batches_refused,
            "abandoned": measures.batches_abandoned,
        }
        for result, count in batches.items():
            page.add("strandline_batcher_batches_total", count, label("result", result))
        page.add("strandline_batcher_stored_bytes_total", measures.bytes_stored)
        for why, count in measures.left.items():
            page.add("strandline_batcher_departures_total", count, label("reason", why.value))
        page.add_histogram("strandline_batcher_object_bytes", measures.object_bytes)
        page.add_histogram("strandline_batcher_object_batches", measures.object_batches)
        page.add_histogram("strandline_batcher_wait_seconds", measures.wait_seconds)
        page.add_histogram("strandline_batcher_upload_seconds", measures.upload_seconds)
        page.add("strandline_batcher_staged_bytes", batcher.staged_bytes)
        page.add("strandline_batcher_staged_batches", batcher.staged_batches)
        page.add("strandline_batcher_uploads", batcher.uploads)
        window = batcher.window
        page.add("strandline_batcher_window", int(window.size))
        page.add("strandline_batcher_window_limit", window.most)
        page.add("strandline_batcher_window_opened_total", window.opened)
        for reason, count in (("failures", window.closed_by_failures), ("slow", window.closed_by_slowness)):
            page.add("strandline_batcher_window_closed_total", count, label("reason", reason))

    def _reader(self, page: Page) -> None:
        reader, store = self._source.reader, self._source.store
        measures = reader.measures
        page.add("strandline_reader_gets_total", measures.gets)
        page.add("strandline_reader_failed_gets_total", measures.failed)
        page.add("strandline_reader_read_bytes_total", measures.bytes_read)
        page.add("strandline_reader_batches_total", measures.batches_read)
        page.add("strandline_reader_ahead_batches_total", measures.batches_ahead)
        page.add("strandline_reader_joined_total", measures.joined)
        page.add("strandline_reader_bad_batches_total", measures.bad)
        page.add_histogram("strandline_reader_get_seconds", measures.get_seconds)
        page.add("strandline_reader_loading_bytes", reader.loading_bytes)
        if isinstance(store, RetryingStore):
            for operation, count in store.requests.items():
                page.add("strandline_store_requests_total", count, label("operation", operation))
            if store.hedging is not None:
                for operation, count in store.hedging.sent.items():
                    labels = label("operation", operation)
                    page.add("strandline_store_hedges_total", count, labels)
                    page.add("strandline_store_hedges_won_total", store.hedging.won[operation], labels)
                page.add("strandline_store_hedges_refused_total", store.hedging.refused)
            page.add("strandline_store_retries_total", store.retries)
            page.add("strandline_store_retries_refused_total", store.exhausted)
            failing = {trouble.kind for trouble in store.health.troubles()}
            for kind, count in store.health.given_up.items():
                page.add("strandline_store_failed_operations_total", count, label("kind", kind))
                page.add("strandline_store_failing", int(kind in failing), label("kind", kind))

    async def _raft(self, page: Page, slices: Slices) -> None:
        roles = dict.fromkeys(_ROLES.values(), 0)
        failed = leaderless = quiet = commands = waiting = unapplied = 0
        for group in list(self._source.host.groups.values()):
            roles[_ROLES[group.role]] += 1
            failed += group.failure is not None
            leaderless += group.leader is None and group.role != LEADER
            quiet += group.quiesced_under is not None
            commands += len(group.waiting)
            waiting += group.waiting_bytes
            unapplied += max(group.commit - group.applied, 0)
            await slices.breathe()
        for role, count in roles.items():
            page.add("strandline_raft_groups", count, label("role", role))
        page.add("strandline_raft_failed_groups", failed)
        page.add("strandline_raft_leaderless_groups", leaderless)
        counts = self._source.host.campaigns.counts
        for rank, cause in product(Rank, Cause):
            labels = f"{label('rank', rank.name.lower())},{label('cause', cause)}"
            page.add("strandline_raft_elections_total", counts[rank, cause], labels)
        page.add("strandline_raft_quiet_groups", quiet)
        page.add("strandline_raft_pending_commands", commands)
        page.add("strandline_raft_pending_bytes", waiting)
        page.add("strandline_raft_unapplied_entries", unapplied)

    def _log(self, page: Page) -> None:
        host = self._source.host
        wal = host.wal
        page.add("strandline_wal_records_total", wal.tail_lsn)
        page.add("strandline_wal_unsynced_records", wal.tail_lsn - wal.synced_lsn)
        page.add("strandline_wal_buffered_bytes", wal.buffered_bytes)
        page.add("strandline_wal_segments", wal.current_segment - wal.first_segment + 1)
        page.add("strandline_wal_carried_groups", len(host.carrying.carried))
        page.add("strandline_wal_carried_bytes", host.carrying.bytes)
        since = wal.stalled_since
        page.add("strandline_wal_stalled_seconds", 0 if since is None else host.loop.time() - since)

    def _mesh(self, page: Page) -> None:
        host = self._source.host
        counters = host.mesh.counters
        for peer in self._source.controller.machine.nodes:
            if peer != host.node_id:
                page.add("strandline_mesh_connected", int(host.connected(peer)), label("peer", peer))
        page.add("strandline_mesh_frames_sent_total", counters["frames_sent"])
        page.add("strandline_mesh_frames_received_total", counters["frames_received"])
        page.add("strandline_mesh_sent_bytes_total", counters["bytes_sent"])
        for drop in _DROPS:
            page.add("strandline_mesh_frames_dropped_total", counters[drop], label("reason", drop))
        for reason in MeshReason:
            page.add("strandline_mesh_problems_total", counters[reason], label("reason", reason))
        if (end := host.mesh.certificate_end) is not None:
            page.add("strandline_mesh_certificate_end_seconds", end)

    async def _controller(self, page: Page, slices: Slices) -> None:
        source = self._source
        machine = source.controller.machine
        group = source.host.groups.get(CONTROLLER_GROUP)
        page.add("strandline_cluster_epoch", source.epoch.current())
        page.add("strandline_controller_leader", int(group is not None and group.is_leader))
        page.add("strandline_controller_epoch", 0 if group is None else group.term)
        page.add("strandline_controller_applied_index", machine.applied_index)
        page.add("strandline_controller_version", machine.version)
        fenced = sum(registration.fenced for registration in machine.nodes.values())
        page.add("strandline_controller_nodes", len(machine.nodes) - fenced, label("state", "live"))
        page.add("strandline_controller_nodes", fenced, label("state", "fenced"))
        topics = machine.topics
        page.add("strandline_controller_topics", len(topics))
        page.add("strandline_controller_partitions", sum(len(topic.partitions) for topic in topics))
        await slices.breathe()

    def _coordinators(self, page: Page) -> None:
        counts: Counter[tuple[str, str]] = Counter()
        keys: Counter[str] = Counter()
        for replica in self._source.coordinators:
            kind = replica.machine.kind
            counts[kind, "leader" if replica.leads else "follower"] += 1
            keys[kind] += coordinated_keys(replica) if replica.leads else 0
        for kind in (GROUPS_KIND, TRANSACTIONS_KIND):
            for role in ("leader", "follower"):
                which = f"{label('kind', kind)},{label('role', role)}"
                page.add("strandline_coordinator_replicas", counts[kind, role], which)
            page.add("strandline_coordinator_keys", keys[kind], label("kind", kind))
        led = self._source.coordinators.led_groups()
        totals = [one.machine.totals for one in led]
        groups = max((len(one.machine.groups) for one in led), default=0)
        page.add("strandline_coordinator_most_groups", groups)
        page.add("strandline_coordinator_most_offsets", max((one.offsets for one in totals), default=0))
        page.add("strandline_coordinator_most_offset_bytes", max((one.bytes for one in totals), default=0))
        page.add("strandline_coordinator_refused_total", sum(one.bounds.refused for one in led))


def replicas(source: AdminSource) -> list[PartitionSource]:
    """The replicas here in the order of their groups, at most one for each topic and number.

    For a moment a node may have those of a topic that was deleted beside those of the new one of that name:
    two samples with the same labels would make Prometheus refuse the whole page. The newer one is told.
    """
    ordered = sorted(source.partitions, key=lambda partition: partition.group.id)
    newest = {(partition.topic, partition.number): partition for partition in ordered}
    return list(newest.values())


def _partition(page: Page, source: AdminSource, partition: PartitionSource) -> None:
    machine, window, counters = partition.machine, partition.fence.window, partition.fence.counters
    labels = f"{label('topic', partition.topic)},{label('partition', partition.number)}"
    page.add("strandline_partition_leader", int(partition.leads), labels)
    page.add("strandline_partition_leader_epoch", machine.term, labels)
    page.add("strandline_partition_high_watermark", machine.high_watermark, labels)
    page.add("strandline_partition_start_offset", machine.start_offset, labels)
    collection_metrics.partition(page, partition, labels)
    inline_metrics.partition(page, source, partition, labels)
    page.add("strandline_partition_producers", len(machine.producers), labels)
    page.add("strandline_partition_aborted_transactions", len(machine.aborted), labels)
    page.add("strandline_partition_retained_checkpoints", len(machine.checkpoints.retained), labels)
    page.add("strandline_partition_max_collectable_epoch", collectable_epoch(partition), labels)
    if window is not None and window.oldest is not None and window.newest is not None:
        page.add("strandline_epoch_window_oldest", window.oldest, labels)
        page.add("strandline_epoch_window_newest", window.newest, labels)
        page.add("strandline_epoch_window_size", window.size, labels)
    duplicates = partition.writer.duplicates
    if not partition.leads and counters == _NOTHING_COUNTED and not duplicates:
        return
    page.add("strandline_epoch_window_slides_total", counters.slides, labels)
    page.add("strandline_epoch_window_rejections_total", counters.rejections, labels)
    page.add("strandline_epoch_window_last_gap", counters.last_gap, labels)
    page.add("strandline_epoch_fences_total", counters.new_epoch_fences, f'{labels},epoch="new"')
    page.add("strandline_epoch_fences_total", counters.same_epoch_fences, f'{labels},epoch="same"')
    page.add("strandline_partition_duplicate_batches_total", duplicates, labels)
