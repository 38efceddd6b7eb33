"""Every metric a node exposes. docs/operating.md lists the same, and a test holds the two together.

Names follow https://prometheus.io/docs/practices/naming/: base units, `_total` on counters. Those that any
Prometheus client calls `process_...` keep those names, because dashboards look for them.
"""

from __future__ import annotations

from typing import Final

from strandline.node.admin.exposition import Metric, Type

_C, _G, _H = Type.COUNTER, Type.GAUGE, Type.HISTOGRAM
_PARTITION: Final = ("topic", "partition")

PROCESS: Final = (
    Metric("process_cpu_seconds_total", _C, "seconds", "Processor time, user and system."),
    Metric("process_resident_memory_bytes", _G, "bytes", "Memory in RAM."),
    Metric("process_start_time_seconds", _G, "seconds", "When the process started, since 1970."),
    Metric("process_open_fds", _G, "files", "Open file descriptors."),
    Metric("strandline_node_info", _G, "1", "Which node this is; always 1.", ("node", "cluster", "version")),
    Metric("strandline_healthy", _G, "0 or 1", "Whether /health answers 200."),
    Metric(
        "strandline_problems", _G, "things", "What /health says is wrong: how many it is about.", ("reason",)
    ),
    Metric("strandline_event_loop_lag_seconds", _H, "seconds", "How late the event loop ran a timer."),
    Metric(
        "strandline_event_loop_held_seconds_total",
        _C,
        "seconds",
        "Time by which timers were more than 20 ms late, by the function that ran meanwhile.",
        ("part",),
    ),
    Metric(
        "strandline_event_loop_held_longest_seconds",
        _G,
        "seconds",
        "The longest of it in one go since the start.",
        ("part",),
    ),
    Metric("strandline_http_requests_total", _C, "requests", "HTTP requests answered.", ("code",)),
)

KAFKA: Final = (
    Metric("strandline_kafka_connections", _G, "connections", "Open connections of Kafka clients."),
    Metric("strandline_kafka_connections_opened_total", _C, "connections", "Connections accepted."),
    Metric(
        "strandline_kafka_connections_closed_total",
        _C,
        "connections",
        "Connections that were ended from this side, by reason.",
        ("reason",),
    ),
    Metric("strandline_kafka_requests_total", _C, "requests", "Requests taken up."),
    Metric(
        "strandline_kafka_request_bytes",
        _G,
        "bytes",
        "Request frames that were admitted and are not answered yet.",
    ),
)

LEVEL_ZERO: Final = (
    Metric("strandline_batcher_objects_total", _C, "objects", "Uploads that ended, by result.", ("result",)),
    Metric(
        "strandline_batcher_batches_total",
        _C,
        "batches",
        "Batches that were stored, failed, were refused, or abandoned by their callers.",
        ("result",),
    ),
    Metric("strandline_batcher_stored_bytes_total", _C, "bytes", "Objects stored, in bytes."),
    Metric("strandline_batcher_departures_total", _C, "objects", "Why objects left.", ("reason",)),
    Metric("strandline_batcher_object_bytes", _H, "bytes", "Size of an object."),
    Metric("strandline_batcher_object_batches", _H, "batches", "Batches in an object."),
    Metric("strandline_batcher_wait_seconds", _H, "seconds", "From staging a batch to its object leaving."),
    Metric("strandline_batcher_upload_seconds", _H, "seconds", "Duration of an upload, retries included."),
    Metric("strandline_batcher_staged_bytes", _G, "bytes", "Batches staged or being uploaded, in bytes."),
    Metric("strandline_batcher_staged_batches", _G, "batches", "Batches staged or being uploaded."),
    Metric("strandline_batcher_uploads", _G, "uploads", "Uploads under way."),
    Metric("strandline_reader_gets_total", _C, "gets", "Ranges fetched from the store."),
    Metric("strandline_reader_failed_gets_total", _C, "gets", "Gets that failed."),
    Metric("strandline_reader_read_bytes_total", _C, "bytes", "Bytes of the ranges fetched."),
    Metric("strandline_reader_batches_total", _C, "batches", "Batches in the ranges fetched."),
    Metric("strandline_reader_ahead_batches_total", _C, "batches", "Of them, read before anybody asked."),
    Metric("strandline_reader_joined_total", _C, "reads", "Reads that joined another reader's get."),
    Metric("strandline_reader_bad_batches_total", _C, "batches", "Batches that were not what was stored."),
    Metric("strandline_reader_get_seconds", _H, "seconds", "Duration of a get, retries included."),
    Metric("strandline_reader_loading_bytes", _G, "bytes", "Batches being fetched, in bytes."),
    Metric(
        "strandline_store_requests_total",
        _C,
        "requests",
        "Requests to the store, those of the level-one worker apart; deletions take up to 1000 objects.",
        ("operation",),
    ),
    Metric("strandline_store_retries_total", _C, "retries", "Calls of the store that were tried again."),
    Metric(
        "strandline_store_retries_refused_total",
        _C,
        "retries",
        "Calls not tried again because the budget of retries was spent.",
    ),
    Metric(
        "strandline_store_failed_operations_total",
        _C,
        "operations",
        "Calls of the store that were given up.",
        ("kind",),
    ),
    Metric("strandline_store_failing", _G, "0 or 1", "Whether the store fails at something.", ("kind",)),
    Metric("strandline_cache_bytes", _G, "bytes", "What a cache holds, in bytes.", ("cache",)),
    Metric("strandline_cache_limit_bytes", _G, "bytes", "What a cache may hold.", ("cache",)),
    Metric("strandline_cache_entries", _G, "entries", "Batches, blocks or indexes it holds.", ("cache",)),
    Metric("strandline_cache_hits_total", _C, "lookups", "Lookups that found their entry.", ("cache",)),
    Metric("strandline_cache_misses_total", _C, "lookups", "Lookups that did not.", ("cache",)),
    Metric("strandline_cache_evictions_total", _C, "entries", "Entries that made room.", ("cache",)),
)

RAFT: Final = (
    Metric("strandline_raft_groups", _G, "groups", "Groups with a replica here, by its role.", ("role",)),
    Metric("strandline_raft_failed_groups", _G, "groups", "Replicas that stopped."),
    Metric("strandline_raft_leaderless_groups", _G, "groups", "Groups that have no leader known here."),
    Metric("strandline_raft_quiet_groups", _G, "groups", "Idle groups under the shared heartbeat."),
    Metric("strandline_raft_pending_commands", _G, "commands", "Commands proposed here and not committed."),
    Metric("strandline_raft_pending_bytes", _G, "bytes", "Their bytes."),
    Metric("strandline_raft_unapplied_entries", _G, "entries", "Entries committed and not applied."),
    Metric("strandline_wal_records_total", _C, "records", "Records of the write-ahead log, of all its life."),
    Metric("strandline_wal_unsynced_records", _G, "records", "Records that are not durable yet."),
    Metric("strandline_wal_buffered_bytes", _G, "bytes", "Records that wait to be written."),
    Metric("strandline_wal_segments", _G, "segments", "Segments of the log on disk."),
    Metric(
        "strandline_wal_carried_groups",
        _G,
        "groups",
        "Replicas that stopped or are stuck, whose entries are carried along in the log.",
    ),
    Metric(
        "strandline_wal_carried_bytes",
        _G,
        "bytes",
        "Those entries; the log may be longer by three times as much.",
    ),
    Metric(
        "strandline_wal_stalled_seconds", _G, "seconds", "How long the write under way has taken; 0: none."
    ),
    Metric("strandline_mesh_connected", _G, "0 or 1", "Whether a peer is connected.", ("peer",)),
    Metric("strandline_mesh_frames_sent_total", _C, "frames", "Frames sent to peers."),
    Metric("strandline_mesh_frames_received_total", _C, "frames", "Frames received from peers."),
    Metric("strandline_mesh_sent_bytes_total", _C, "bytes", "Bytes of the frames sent."),
    Metric("strandline_mesh_frames_dropped_total", _C, "frames", "Frames not sent, by reason.", ("reason",)),
    Metric("strandline_mesh_problems_total", _C, "problems", "Problems between nodes.", ("reason",)),
)

CONTROLLER: Final = (
    Metric("strandline_cluster_epoch", _G, "epoch", "The newest cluster epoch this node knows."),
    Metric("strandline_controller_leader", _G, "0 or 1", "Whether this node leads the controller."),
    Metric("strandline_controller_epoch", _G, "term", "Kafka's controller epoch: the controller's term."),
    Metric("strandline_controller_applied_index", _G, "index", "Last entry of the controller applied here."),
    Metric("strandline_controller_version", _G, "index", "Entry of the last change of topics or nodes."),
    Metric("strandline_controller_nodes", _G, "nodes", "Registered nodes, by state.", ("state",)),
    Metric("strandline_controller_topics", _G, "topics", "Topics."),
    Metric("strandline_controller_partitions", _G, "partitions", "Partitions of all topics."),
)

COORDINATOR: Final = (
    Metric(
        "strandline_coordinator_replicas",
        _G,
        "replicas",
        "Replicas of coordinators here, by what they coordinate and whether they lead.",
        ("kind", "role"),
    ),
    Metric("strandline_coordinator_keys", _G, "keys", "Groups or transactional ids led here.", ("kind",)),
    Metric("strandline_coordinator_most_groups", _G, "groups", "Of the coordinator led here with most."),
    Metric("strandline_coordinator_most_offsets", _G, "offsets", "Of the coordinator led here with most."),
    Metric("strandline_coordinator_most_offset_bytes", _G, "bytes", "Of the coordinator led here with most."),
    Metric(
        "strandline_coordinator_refused_total",
        _C,
        "requests",
        "Refused as a groups' coordinator has as many groups or offsets as it takes.",
    ),
    Metric(
        "strandline_consumer_group_offset",
        _G,
        "offset",
        "What a group coordinated here has committed.",
        ("group", "topic", "partition"),
    ),
    Metric(
        "strandline_consumer_group_lag",
        _G,
        "offsets",
        "From there to the high watermark, where this node has a replica.",
        ("group", "topic", "partition"),
    ),
    Metric(
        "strandline_consumer_group_offsets_left_out",
        _G,
        "offsets",
        "Committed offsets beyond the 5,000 that a node tells.",
    ),
)

PARTITION: Final = (
    Metric("strandline_partition_leader", _G, "0 or 1", "Whether this node leads and accepts.", _PARTITION),
    Metric("strandline_partition_leader_epoch", _G, "term", "Term of the last leader's begin.", _PARTITION),
    Metric("strandline_partition_high_watermark", _G, "offset", "End of what consumers may see.", _PARTITION),
    Metric("strandline_partition_start_offset", _G, "offset", "Offset of the first record.", _PARTITION),
    Metric(
        "strandline_partition_last_reconciled_offset",
        _G,
        "offset",
        "Up to it all records are in level one; -1: none.",
        _PARTITION,
    ),
    Metric("strandline_partition_extents", _G, "extents", "Batches in level zero.", _PARTITION),
    Metric("strandline_partition_level_zero_bytes", _G, "bytes", "Their bytes.", _PARTITION),
    Metric("strandline_partition_level_one_objects", _G, "objects", "Objects in level one.", _PARTITION),
    Metric("strandline_partition_level_one_bytes", _G, "bytes", "Bytes of these objects.", _PARTITION),
    Metric("strandline_partition_producers", _G, "producers", "Idempotent producers remembered.", _PARTITION),
    Metric(
        "strandline_partition_aborted_transactions",
        _G,
        "transactions",
        "Aborted transactions that have records.",
        _PARTITION,
    ),
    Metric(
        "strandline_partition_retained_checkpoints", _G, "checkpoints", "Checkpoints retained.", _PARTITION
    ),
    Metric(
        "strandline_partition_max_collectable_epoch",
        _G,
        "epoch",
        "M(p): the highest epoch the partition needs no longer and never accepts again.",
        _PARTITION,
    ),
    Metric("strandline_epoch_window_oldest", _G, "epoch", "Lower end of the leader's window.", _PARTITION),
    Metric("strandline_epoch_window_newest", _G, "epoch", "Upper end of the leader's window.", _PARTITION),
    Metric("strandline_epoch_window_size", _G, "epochs", "Epochs in the leader's window.", _PARTITION),
    Metric("strandline_epoch_window_slides_total", _C, "slides", "Slides of the window.", _PARTITION),
    Metric(
        "strandline_epoch_window_rejections_total", _C, "requests", "Requests below the window.", _PARTITION
    ),
    Metric(
        "strandline_epoch_window_last_gap", _G, "epochs", "How far below the last of them was.", _PARTITION
    ),
    Metric(
        "strandline_epoch_fences_total",
        _C,
        "fences",
        "Fences granted, with a new epoch (by a slide) or the same (within the window).",
        (*_PARTITION, "epoch"),
    ),
)

LEVEL_ONE: Final = (
    Metric("strandline_level_one_jobs_total", _C, "jobs", "Passes over level zero."),
    Metric(
        "strandline_level_one_objects_total",
        _C,
        "objects",
        "Objects that partitions came to name: lifted out of level zero, or merged from others.",
        ("from",),
    ),
    Metric("strandline_level_one_written_bytes_total", _C, "bytes", "Bytes of these objects.", ("from",)),
    Metric("strandline_level_one_merged_objects_total", _C, "objects", "Objects that merged ones replaced."),
    Metric("strandline_level_one_failed_builds_total", _C, "objects", "Objects that could not be built."),
    Metric(
        "strandline_level_one_results_total",
        _C,
        "results",
        "Results that came too late, or whose outcome was not known at once.",
        ("result",),
    ),
    Metric("strandline_level_one_job_seconds", _H, "seconds", "Duration of passes and merges."),
    Metric(
        "strandline_level_one_deleted_objects_total",
        _C,
        "objects",
        "Objects deleted: those that were named once, and those that never were.",
        ("reason",),
    ),
    Metric("strandline_level_one_deleted_bytes_total", _C, "bytes", "Bytes of those named once."),
    Metric("strandline_level_one_sweeps_total", _C, "sweeps", "Partitions whose objects were listed."),
    Metric("strandline_level_one_lists_total", _C, "lists", "Listings."),
    Metric("strandline_level_one_foreign_names_total", _C, "names", "Names met that are no object's."),
    Metric("strandline_level_one_errors_total", _C, "errors", "Listings and deletions that failed."),
    Metric("strandline_level_one_builder_gets_total", _C, "gets", "Ranges fetched to write objects."),
    Metric("strandline_level_one_builder_puts_total", _C, "puts", "Objects stored, or tried to."),
    Metric("strandline_level_one_builder_read_bytes_total", _C, "bytes", "Bytes read to write objects."),
    Metric("strandline_level_one_builder_cpu_seconds_total", _C, "seconds", "Of the process that builds."),
    Metric("strandline_level_one_builder_starts_total", _C, "starts", "Starts of that process."),
    Metric("strandline_level_one_reader_gets_total", _C, "gets", "Ranges fetched from the store."),
    Metric("strandline_level_one_reader_failed_gets_total", _C, "gets", "Gets that failed."),
    Metric("strandline_level_one_reader_read_bytes_total", _C, "bytes", "Bytes of the ranges fetched."),
    Metric("strandline_level_one_reader_given_bytes_total", _C, "bytes", "Bytes given to readers."),
    Metric("strandline_level_one_reader_bad_total", _C, "blocks", "Blocks and indexes not as stored."),
    Metric("strandline_level_one_reader_get_seconds", _H, "seconds", "Duration of a get, retries included."),
    Metric("strandline_retention_moves_total", _C, "moves", "Start offsets moved by retention."),
    Metric("strandline_retention_records_total", _C, "offsets", "Offsets that these moves passed."),
)

COLLECTION: Final = (
    Metric(
        "strandline_storage_objects",
        _G,
        "objects",
        "Level-one objects of partitions led here: named, or removed and not deleted yet.",
        ("state",),
    ),
    Metric(
        "strandline_storage_bytes",
        _G,
        "bytes",
        "What partitions led here refer to: batches in level zero, level-one objects, removed ones.",
        ("state",),
    ),
    Metric("strandline_collector_max_collectable_epoch", _G, "epoch", "M, as this node knows it."),
    Metric("strandline_collector_bound_epoch", _G, "epoch", "M a grace period ago: what is deleted by."),
    Metric("strandline_collector_lag_epochs", _G, "epochs", "Closed epochs above that bound."),
    Metric("strandline_collector_lag_seconds", _G, "seconds", "How long the oldest of them has been closed."),
    Metric("strandline_collector_paused", _G, "0 or 1", "Whether collecting is paused in the cluster."),
    Metric("strandline_collector_broken", _G, "0 or 1", "Whether the collector stopped until it is reset."),
    Metric("strandline_collector_sweeps_total", _C, "sweeps", "Sweeps over all shards of this node."),
    Metric("strandline_collector_lists_total", _C, "lists", "Listings."),
    Metric("strandline_collector_listed_objects_total", _C, "objects", "Names that they gave."),
    Metric("strandline_collector_deleted_objects_total", _C, "objects", "Level-zero objects deleted."),
    Metric("strandline_collector_foreign_names", _G, "names", "Names met that are no object's."),
    Metric("strandline_collector_errors_total", _C, "errors", "Sweeps that failed."),
    Metric(
        "strandline_gone_topics_deleted_objects_total",
        _C,
        "objects",
        "Objects and documents of deleted topics, deleted while this node led the controller.",
    ),
    Metric("strandline_clock_trusted", _G, "0 or 1", "Whether most nodes agree on the time."),
    Metric("strandline_clock_offset_seconds", _G, "seconds", "What is added to this node's clock."),
)

CHECKPOINTS: Final = (
    Metric(
        "strandline_checkpoint_documents_total",
        _C,
        "documents",
        "Documents of checkpoints, states and logs, that were published or given up.",
        ("kind", "result"),
    ),
    Metric("strandline_checkpoint_published_bytes_total", _C, "bytes", "Documents published, in bytes."),
    Metric("strandline_checkpoint_failed_puts_total", _C, "puts", "Failed attempts; they are repeated."),
    Metric("strandline_checkpoint_waiting", _G, "documents", "States that wait or are on their way."),
    Metric("strandline_checkpoint_waiting_bytes", _G, "bytes", "Their bytes, and those of their logs."),
)

METRICS: Final = (
    *PROCESS,
    *KAFKA,
    *LEVEL_ZERO,
    *LEVEL_ONE,
    *COLLECTION,
    *RAFT,
    *CONTROLLER,
    *COORDINATOR,
    *CHECKPOINTS,
    *PARTITION,
)
