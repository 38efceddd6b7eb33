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
        "strandline_problems",
        _G,
        "things",
        "Problems that /health reports: number of affected things.",
        ("reason",),
    ),
    Metric("strandline_event_loop_lag_seconds", _H, "seconds", "How late the event loop ran a timer."),
    Metric(
        "strandline_event_loop_held_seconds_total",
        _C,
        "seconds",
        "Time that timers were late beyond 20 ms, by the function that ran meanwhile.",
        ("part",),
    ),
    Metric(
        "strandline_event_loop_held_longest_seconds",
        _G,
        "seconds",
        "The longest single delay since the start.",
        ("part",),
    ),
    Metric("strandline_http_requests_total", _C, "requests", "HTTP requests answered.", ("code",)),
    Metric(
        "strandline_http_certificate_end_seconds",
        _G,
        "seconds",
        "When the certificate of the HTTP port ends, since 1970.",
    ),
    Metric(
        "strandline_http_token_key_reads_total",
        _C,
        "reads",
        "Reads of the keys that sign the HTTP port's tokens.",
        ("result",),
    ),
)

KAFKA: Final = (
    Metric("strandline_kafka_connections", _G, "connections", "Open connections of Kafka clients."),
    Metric("strandline_kafka_connections_opened_total", _C, "connections", "Connections accepted."),
    Metric(
        "strandline_kafka_connections_closed_total",
        _C,
        "connections",
        "Connections closed by the node, by reason.",
        ("reason",),
    ),
    Metric("strandline_kafka_tls_handshakes_total", _C, "handshakes", "TLS handshakes ended.", ("result",)),
    Metric("strandline_kafka_logins_total", _C, "logins", "Clients that have logged in."),
    Metric(
        "strandline_kafka_throttled_total",
        _C,
        "answers",
        "Answers with a throttle time, by the quota and the entity that has it.",
        ("quota", "entity"),
    ),
    Metric(
        "strandline_kafka_throttled_seconds_total",
        _C,
        "seconds",
        "Throttle times told to clients, by the quota and the entity that has it.",
        ("quota", "entity"),
    ),
    Metric("strandline_kafka_logging_in", _G, "connections", "Connections that have to log in and have not."),
    Metric(
        "strandline_kafka_connections_waiting", _G, "connections", "Connections that wait for their turn."
    ),
    Metric(
        "strandline_kafka_fetch_partitions",
        _G,
        "partitions",
        "Partitions that connections fetch, kept for their next fetches.",
    ),
    Metric(
        "strandline_kafka_fetch_sessions",
        _G,
        "sessions",
        "Connections whose requests name only what has changed (KIP-227).",
    ),
    Metric(
        "strandline_kafka_connections_waited_total", _C, "connections", "Connections that had to wait for it."
    ),
    Metric(
        "strandline_kafka_certificate_end_seconds",
        _G,
        "seconds",
        "When the certificate of a listener ends, since 1970.",
        ("listener",),
    ),
    Metric(
        "strandline_kafka_token_key_reads_total",
        _C,
        "reads",
        "Reads of the keys that sign a listener's tokens.",
        ("listener", "result"),
    ),
    Metric("strandline_kafka_requests_total", _C, "requests", "Requests started."),
    Metric(
        "strandline_kafka_request_bytes",
        _G,
        "bytes",
        "Bytes of requests that are not answered yet.",
    ),
)

LEVEL_ZERO: Final = (
    Metric("strandline_batcher_objects_total", _C, "objects", "Uploads that ended, by result.", ("result",)),
    Metric(
        "strandline_batcher_batches_total",
        _C,
        "batches",
        "Batches by result: stored, failed, refused, or abandoned by the caller.",
        ("result",),
    ),
    Metric("strandline_batcher_stored_bytes_total", _C, "bytes", "Objects stored, in bytes."),
    Metric("strandline_batcher_departures_total", _C, "objects", "Objects flushed, by reason.", ("reason",)),
    Metric("strandline_batcher_object_bytes", _H, "bytes", "Size of an object."),
    Metric("strandline_batcher_object_batches", _H, "batches", "Batches in an object."),
    Metric(
        "strandline_batcher_wait_seconds",
        _H,
        "seconds",
        "Time from staging a batch to the flush of its object.",
    ),
    Metric("strandline_batcher_upload_seconds", _H, "seconds", "Duration of an upload, retries included."),
    Metric("strandline_batcher_staged_bytes", _G, "bytes", "Batches staged or being uploaded, in bytes."),
    Metric("strandline_batcher_staged_batches", _G, "batches", "Batches staged or being uploaded."),
    Metric("strandline_batcher_uploads", _G, "uploads", "Uploads under way."),
    Metric("strandline_batcher_window", _G, "uploads", "Uploads that the window allows at a time now."),
    Metric(
        "strandline_batcher_window_limit", _G, "uploads", "Most uploads that the window can allow at a time."
    ),
    Metric(
        "strandline_batcher_window_opened_total",
        _C,
        "times",
        "Times that the window of uploads opened by one.",
    ),
    Metric(
        "strandline_batcher_window_closed_total",
        _C,
        "times",
        "Times that the window of uploads closed, by reason: failures, or slow answers.",
        ("reason",),
    ),
    Metric(
        "strandline_inline_batches_total", _C, "batches", "Produced batches that went into the log itself."
    ),
    Metric("strandline_inline_bytes_total", _C, "bytes", "Bytes of batches that went into the log itself."),
    Metric(
        "strandline_inline_refused_batches_total",
        _C,
        "batches",
        "Small batches that went to an object because a limit was passed.",
    ),
    Metric(
        "strandline_inline_switches_total",
        _C,
        "switches",
        "Times that a partition's small batches took another way: inline, or to objects by the limit passed.",
        ("to",),
    ),
    Metric(
        "strandline_inline_stored_batches_total",
        _C,
        "batches",
        "Batches in the log, markers included, that were stored in objects.",
    ),
    Metric(
        "strandline_inline_stored_bytes_total",
        _C,
        "bytes",
        "Bytes of batches in the log that were stored in objects.",
    ),
    Metric(
        "strandline_inline_failed_stores_total",
        _C,
        "attempts",
        "Failed attempts to store batches of the log in objects.",
    ),
    Metric(
        "strandline_inline_snapshots_total",
        _C,
        "snapshots",
        "Snapshots taken because the logs took too much memory.",
    ),
    Metric(
        "strandline_inline_kept_bytes",
        _G,
        "bytes",
        "Bytes in the logs alone, of the partitions led here.",
    ),
    Metric("strandline_inline_kept_limit_bytes", _G, "bytes", "Maximum of the bytes in the logs alone."),
    Metric("strandline_reader_gets_total", _C, "gets", "Ranges fetched from the store."),
    Metric("strandline_reader_failed_gets_total", _C, "gets", "Gets that failed."),
    Metric("strandline_reader_read_bytes_total", _C, "bytes", "Bytes of the ranges fetched."),
    Metric("strandline_reader_batches_total", _C, "batches", "Batches in the ranges fetched."),
    Metric("strandline_reader_ahead_batches_total", _C, "batches", "Batches that were read ahead."),
    Metric("strandline_reader_joined_total", _C, "reads", "Reads that joined another reader's get."),
    Metric("strandline_reader_bad_batches_total", _C, "batches", "Batches that failed verification."),
    Metric("strandline_reader_get_seconds", _H, "seconds", "Duration of a get, retries included."),
    Metric("strandline_reader_loading_bytes", _G, "bytes", "Batches being fetched, in bytes."),
    Metric(
        "strandline_store_requests_total",
        _C,
        "requests",
        "Requests to the store, without those of the workers; a deletion takes up to 1000 objects.",
        ("operation",),
    ),
    Metric(
        "strandline_store_hedges_total",
        _C,
        "requests",
        "Requests sent twice, because an answer took longer than nearly all others did.",
        ("operation",),
    ),
    Metric(
        "strandline_store_hedges_won_total",
        _C,
        "requests",
        "Requests sent twice whose second was answered first.",
        ("operation",),
    ),
    Metric(
        "strandline_store_hedges_refused_total",
        _C,
        "requests",
        "Slow requests that were not sent twice, because of the budget for it or of failures.",
    ),
    Metric("strandline_store_retries_total", _C, "retries", "Store calls that were retried."),
    Metric(
        "strandline_store_retries_refused_total",
        _C,
        "retries",
        "Store calls not retried because the retry budget was spent.",
    ),
    Metric(
        "strandline_store_failed_operations_total",
        _C,
        "operations",
        "Store calls that failed after all retries.",
        ("kind",),
    ),
    Metric(
        "strandline_store_failing",
        _G,
        "0 or 1",
        "Whether a kind of store operation fails at present.",
        ("kind",),
    ),
    Metric("strandline_cache_bytes", _G, "bytes", "Size of a cache.", ("cache",)),
    Metric("strandline_cache_limit_bytes", _G, "bytes", "Maximum size of a cache.", ("cache",)),
    Metric("strandline_cache_entries", _G, "entries", "Batches, blocks or indexes in a cache.", ("cache",)),
    Metric("strandline_cache_hits_total", _C, "lookups", "Lookups that found their entry.", ("cache",)),
    Metric(
        "strandline_cache_misses_total", _C, "lookups", "Lookups that did not find their entry.", ("cache",)
    ),
    Metric("strandline_cache_evictions_total", _C, "entries", "Entries evicted to make room.", ("cache",)),
    Metric(
        "strandline_store_spent_total", _C, "money", "Cost of the requests so far, by the configured prices."
    ),
    Metric(
        "strandline_store_budget_per_month", _G, "money", "This node's share of `storage.requests_budget`."
    ),
    Metric("strandline_store_budget_left", _G, "money", "What may be spent now; below 0, what is owed."),
    Metric(
        "strandline_store_budget_exceeded_total",
        _C,
        "money",
        "Spent beyond the budget, for requests that are not held back.",
    ),
    Metric("strandline_memory_limit_bytes", _G, "bytes", "`memory.limit`; absent without one."),
    Metric(
        "strandline_memory_bytes",
        _G,
        "bytes",
        "Memory in RAM of the node's process, or of its workers, at the last look of the budget.",
        ("of",),
    ),
    Metric(
        "strandline_memory_given_back_total",
        _C,
        "times",
        "Times that free memory was given back to the system: caches had shrunk, or the limit was passed.",
    ),
    Metric(
        "strandline_read_ahead_consumers", _G, "consumers", "Consumers that are read ahead for.", ("level",)
    ),
    Metric(
        "strandline_read_ahead_window_bytes",
        _G,
        "bytes",
        "Bytes that may be read ahead of consumers, by their pace.",
        ("level",),
    ),
)

RAFT: Final = (
    Metric("strandline_raft_groups", _G, "groups", "Groups with a replica here, by its role.", ("role",)),
    Metric("strandline_raft_failed_groups", _G, "groups", "Replicas that stopped."),
    Metric("strandline_raft_leaderless_groups", _G, "groups", "Groups without a leader known to this node."),
    Metric(
        "strandline_raft_elections_total",
        _C,
        "elections",
        "Elections in which a group of this node was a candidate, by what it carries and why.",
        ("rank", "cause"),
    ),
    Metric(
        "strandline_raft_quiet_groups",
        _G,
        "groups",
        "Quiesced groups: idle, and kept alive by the shared heartbeat.",
    ),
    Metric("strandline_raft_pending_commands", _G, "commands", "Commands proposed here and not committed."),
    Metric(
        "strandline_raft_pending_bytes", _G, "bytes", "Bytes of commands proposed here and not committed."
    ),
    Metric("strandline_raft_unapplied_entries", _G, "entries", "Entries committed and not applied."),
    Metric("strandline_wal_records_total", _C, "records", "Records ever appended to the write-ahead log."),
    Metric("strandline_wal_unsynced_records", _G, "records", "Records that are not durable yet."),
    Metric("strandline_wal_buffered_bytes", _G, "bytes", "Records that wait to be written."),
    Metric("strandline_wal_segments", _G, "segments", "Segments of the log on disk."),
    Metric(
        "strandline_wal_carried_groups",
        _G,
        "groups",
        "Stopped or stuck replicas whose entries are carried along in the log.",
    ),
    Metric(
        "strandline_wal_carried_bytes",
        _G,
        "bytes",
        "Bytes of the carried entries; the log can grow by three times as much.",
    ),
    Metric("strandline_wal_stalled_seconds", _G, "seconds", "Duration of the current write; 0: none."),
    Metric("strandline_mesh_connected", _G, "0 or 1", "Whether a peer is connected.", ("peer",)),
    Metric("strandline_mesh_frames_sent_total", _C, "frames", "Frames sent to peers."),
    Metric("strandline_mesh_frames_received_total", _C, "frames", "Frames received from peers."),
    Metric("strandline_mesh_sent_bytes_total", _C, "bytes", "Bytes of the frames sent."),
    Metric("strandline_mesh_frames_dropped_total", _C, "frames", "Frames not sent, by reason.", ("reason",)),
    Metric("strandline_mesh_problems_total", _C, "problems", "Problems between nodes.", ("reason",)),
    Metric(
        "strandline_mesh_certificate_end_seconds",
        _G,
        "seconds",
        "When this node's certificate for the other nodes ends, since 1970.",
    ),
)

CONTROLLER: Final = (
    Metric("strandline_cluster_epoch", _G, "epoch", "The newest cluster epoch this node knows."),
    Metric("strandline_controller_leader", _G, "0 or 1", "Whether this node leads the controller."),
    Metric("strandline_controller_epoch", _G, "term", "Kafka's controller epoch: the controller's term."),
    Metric("strandline_controller_applied_index", _G, "index", "Last entry of the controller applied here."),
    Metric("strandline_controller_version", _G, "index", "Log index of the last change of topics or nodes."),
    Metric("strandline_controller_nodes", _G, "nodes", "Registered nodes, by state.", ("state",)),
    Metric("strandline_controller_topics", _G, "topics", "Topics."),
    Metric("strandline_controller_partitions", _G, "partitions", "Partitions of all topics."),
)

COORDINATOR: Final = (
    Metric(
        "strandline_coordinator_replicas",
        _G,
        "replicas",
        "Coordinator replicas on this node, by kind and role.",
        ("kind", "role"),
    ),
    Metric("strandline_coordinator_keys", _G, "keys", "Groups or transactional ids led here.", ("kind",)),
    Metric("strandline_coordinator_most_groups", _G, "groups", "Groups of the largest coordinator led here."),
    Metric(
        "strandline_coordinator_most_offsets", _G, "offsets", "Offsets of the largest coordinator led here."
    ),
    Metric(
        "strandline_coordinator_most_offset_bytes",
        _G,
        "bytes",
        "Offset bytes of the largest coordinator led here.",
    ),
    Metric(
        "strandline_coordinator_refused_total",
        _C,
        "requests",
        "Requests refused because a coordinator has its maximum of groups or offsets.",
    ),
    Metric(
        "strandline_consumer_group_offset",
        _G,
        "offset",
        "Committed offset of a group coordinated here.",
        ("group", "topic", "partition"),
    ),
    Metric(
        "strandline_consumer_group_lag",
        _G,
        "offsets",
        "Distance from the committed offset to the high watermark, if this node has a replica.",
        ("group", "topic", "partition"),
    ),
    Metric(
        "strandline_consumer_group_offsets_left_out",
        _G,
        "offsets",
        "Committed offsets left out, beyond the 5,000 that a node exposes.",
    ),
)

PARTITION: Final = (
    Metric(
        "strandline_partition_leader",
        _G,
        "0 or 1",
        "Whether this node leads and accepts batches.",
        _PARTITION,
    ),
    Metric("strandline_partition_leader_epoch", _G, "term", "Term of the last leader.", _PARTITION),
    Metric(
        "strandline_partition_high_watermark",
        _G,
        "offset",
        "Offset after the last readable record.",
        _PARTITION,
    ),
    Metric("strandline_partition_start_offset", _G, "offset", "Offset of the first record.", _PARTITION),
    Metric(
        "strandline_partition_last_reconciled_offset",
        _G,
        "offset",
        "All records up to this offset are in level one; -1: none.",
        _PARTITION,
    ),
    Metric("strandline_partition_extents", _G, "extents", "Batches in level zero.", _PARTITION),
    Metric(
        "strandline_partition_level_zero_bytes", _G, "bytes", "Bytes of batches in level zero.", _PARTITION
    ),
    Metric(
        "strandline_partition_inline_bytes",
        _G,
        "bytes",
        "Bytes of batches in the nodes' logs alone.",
        _PARTITION,
    ),
    Metric(
        "strandline_partition_inline_seconds",
        _G,
        "seconds",
        "Age of the oldest batch in the nodes' logs alone, as seen here; 0 where nothing goes inline.",
        _PARTITION,
    ),
    Metric("strandline_partition_level_one_objects", _G, "objects", "Objects in level one.", _PARTITION),
    Metric("strandline_partition_level_one_bytes", _G, "bytes", "Bytes of objects in level one.", _PARTITION),
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
        "M(p): the highest epoch that the partition no longer needs and never accepts again.",
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
        "strandline_epoch_window_last_gap",
        _G,
        "epochs",
        "Distance of the last rejection below the window.",
        _PARTITION,
    ),
    Metric(
        "strandline_epoch_fences_total",
        _C,
        "fences",
        "Fences granted, by epoch: new (the window slid) or same (within the window).",
        (*_PARTITION, "epoch"),
    ),
    Metric(
        "strandline_partition_duplicate_batches_total",
        _C,
        "batches",
        "Batches sent again that the log had already: answered at once, not uploaded.",
        _PARTITION,
    ),
)

LEVEL_ONE: Final = (
    Metric("strandline_level_one_jobs_total", _C, "jobs", "Passes over level zero."),
    Metric(
        "strandline_level_one_objects_total",
        _C,
        "objects",
        "Objects registered by partitions: reconciled from level zero, or merged from others.",
        ("from",),
    ),
    Metric(
        "strandline_level_one_written_bytes_total",
        _C,
        "bytes",
        "Bytes of objects registered by partitions.",
        ("from",),
    ),
    Metric("strandline_level_one_merged_objects_total", _C, "objects", "Objects replaced by merged ones."),
    Metric("strandline_level_one_failed_builds_total", _C, "objects", "Objects that could not be built."),
    Metric(
        "strandline_level_one_results_total",
        _C,
        "results",
        "Results that came too late, or whose outcome was unknown at first.",
        ("result",),
    ),
    Metric("strandline_level_one_job_seconds", _H, "seconds", "Duration of passes and merges."),
    Metric(
        "strandline_level_one_deleted_objects_total",
        _C,
        "objects",
        "Objects deleted, by reason: no longer referenced, or never registered.",
        ("reason",),
    ),
    Metric(
        "strandline_level_one_deleted_bytes_total",
        _C,
        "bytes",
        "Bytes of deleted objects that were once referenced.",
    ),
    Metric(
        "strandline_level_one_sweeps_total", _C, "sweeps", "Sweeps: partitions whose objects were listed."
    ),
    Metric("strandline_level_one_lists_total", _C, "lists", "Listings."),
    Metric("strandline_level_one_foreign_names_total", _C, "names", "Unknown names met in listings."),
    Metric("strandline_level_one_errors_total", _C, "errors", "Listings and deletions that failed."),
    Metric("strandline_level_one_builder_gets_total", _C, "gets", "Ranges fetched to write objects."),
    Metric("strandline_level_one_builder_puts_total", _C, "puts", "Attempts to store an object."),
    Metric("strandline_level_one_builder_read_bytes_total", _C, "bytes", "Bytes read to write objects."),
    Metric("strandline_level_one_builder_cpu_seconds_total", _C, "seconds", "Processor time of the worker."),
    Metric("strandline_level_one_builder_starts_total", _C, "starts", "Starts of the worker process."),
    Metric("strandline_level_one_reader_gets_total", _C, "gets", "Ranges fetched from the store."),
    Metric("strandline_level_one_reader_failed_gets_total", _C, "gets", "Gets that failed."),
    Metric("strandline_level_one_reader_read_bytes_total", _C, "bytes", "Bytes of the ranges fetched."),
    Metric(
        "strandline_level_one_reader_checked_bytes_total",
        _C,
        "bytes",
        "Bytes of open files that were read for their checksums and are sent from there.",
    ),
    Metric("strandline_level_one_reader_given_bytes_total", _C, "bytes", "Bytes given to readers."),
    Metric(
        "strandline_level_one_reader_bad_total", _C, "blocks", "Blocks and indexes that failed verification."
    ),
    Metric("strandline_level_one_reader_get_seconds", _H, "seconds", "Duration of a get, retries included."),
    Metric("strandline_retention_moves_total", _C, "moves", "Start offsets moved by retention."),
    Metric("strandline_retention_records_total", _C, "offsets", "Offsets deleted by retention."),
)

COMPACTION: Final = (
    Metric("strandline_compaction_ingests_total", _C, "segments", "Segments filled from level one."),
    Metric("strandline_compaction_rounds_total", _C, "rounds", "Rounds of cleaning that came to their end."),
    Metric(
        "strandline_compaction_read_bytes_total",
        _C,
        "bytes",
        "Bytes read, by work: ingest (of level one) or clean (of segments).",
        ("work",),
    ),
    Metric(
        "strandline_compaction_written_bytes_total",
        _C,
        "bytes",
        "Bytes of the segments written for this, or of level-one objects (publish).",
        ("work",),
    ),
    Metric(
        "strandline_compaction_publications_total",
        _C,
        "publications",
        "Publications of a leader's local log that changed level one.",
    ),
    Metric(
        "strandline_compaction_published_objects_total",
        _C,
        "objects",
        "Level-one objects that were replaced by what the log has left, or kept as they had it.",
        ("outcome",),
    ),
    Metric("strandline_compaction_local_reads_total", _C, "reads", "Reads that went to a local log."),
    Metric(
        "strandline_compaction_local_read_bytes_total", _C, "bytes", "Bytes that reads of local logs gave."
    ),
    Metric(
        "strandline_compaction_bad_reads_total", _C, "reads", "Reads that met a damaged file of a local log."
    ),
    Metric("strandline_compaction_removed_records_total", _C, "records", "Records removed by rounds."),
    Metric(
        "strandline_compaction_resets_total",
        _C,
        "resets",
        "Local logs rebuilt: there was none, its files were damaged, or it was behind what was removed.",
        ("reason",),
    ),
    Metric("strandline_compaction_failed_jobs_total", _C, "jobs", "Jobs that failed."),
    Metric(
        "strandline_compaction_abandoned_jobs_total",
        _C,
        "jobs",
        "Jobs whose result was not used, as the log or the state had changed.",
    ),
    Metric("strandline_compaction_step_seconds", _H, "seconds", "Duration of ingests and steps of rounds."),
    Metric("strandline_compaction_logs", _G, "logs", "Local logs, by state.", ("state",)),
    Metric(
        "strandline_compaction_worker_cpu_seconds_total",
        _C,
        "seconds",
        "Processor time of the worker, by work: ingest, clean, publish, or tell (beside checkpoints).",
        ("work",),
    ),
    Metric("strandline_compaction_worker_starts_total", _C, "starts", "Starts of the worker process."),
)

COLLECTION: Final = (
    Metric(
        "strandline_storage_objects",
        _G,
        "objects",
        "Level-one objects of partitions led here: referenced, or removed and not deleted yet.",
        ("state",),
    ),
    Metric(
        "strandline_storage_bytes",
        _G,
        "bytes",
        "Bytes that partitions led here refer to: level zero, level one, and removed objects.",
        ("state",),
    ),
    Metric("strandline_collector_max_collectable_epoch", _G, "epoch", "This node's view of M."),
    Metric(
        "strandline_collector_bound_epoch",
        _G,
        "epoch",
        "M a grace period ago: objects up to this epoch are deleted.",
    ),
    Metric("strandline_collector_lag_epochs", _G, "epochs", "Closed epochs above the bound."),
    Metric(
        "strandline_collector_lag_seconds",
        _G,
        "seconds",
        "Time since the oldest closed epoch above the bound was closed; 0 while none has objects.",
    ),
    Metric("strandline_collector_paused", _G, "0 or 1", "Whether collection is paused in the cluster."),
    Metric("strandline_collector_broken", _G, "0 or 1", "Whether the collector stopped and needs a reset."),
    Metric("strandline_collector_sweeps_total", _C, "sweeps", "Sweeps over all shards of this node."),
    Metric("strandline_collector_lists_total", _C, "lists", "Listings."),
    Metric("strandline_collector_listed_objects_total", _C, "objects", "Object names listed."),
    Metric("strandline_collector_deleted_objects_total", _C, "objects", "Level-zero objects deleted."),
    Metric("strandline_collector_foreign_names", _G, "names", "Unknown names met in listings."),
    Metric("strandline_collector_errors_total", _C, "errors", "Sweeps that failed."),
    Metric(
        "strandline_gone_topics_deleted_objects_total",
        _C,
        "objects",
        "Objects and documents of deleted topics that this node deleted as the controller's leader.",
    ),
    Metric("strandline_clock_trusted", _G, "0 or 1", "Whether a majority of nodes agrees on the time."),
    Metric("strandline_clock_offset_seconds", _G, "seconds", "Correction of this node's clock."),
)

REMOVAL: Final = (
    Metric(
        "strandline_removal_reports_total",
        _C,
        "reports",
        "Reports on local logs, sent to leaders and heard as leader.",
        ("direction",),
    ),
    Metric(
        "strandline_removal_entries_total",
        _C,
        "entries",
        "Entries that advance removal, of partitions led here, by result: in force, or none that is known.",
        ("result",),
    ),
    Metric(
        "strandline_removal_clean_end",
        _G,
        "offset",
        "Offset below which the local log of the replica here is clean.",
        _PARTITION,
    ),
    Metric("strandline_removal_log_end", _G, "offset", "End of the replica's local log.", _PARTITION),
    Metric("strandline_removal_log_bytes", _G, "bytes", "Bytes of the replica's local log.", _PARTITION),
    Metric("strandline_removal_mtro", _G, "offset", "Offset below which all copies are clean.", _PARTITION),
    Metric("strandline_removal_mxro", _G, "offset", "Offset below which all copies are settled.", _PARTITION),
    Metric(
        "strandline_removal_ripe_tombstones",
        _G,
        "offset",
        "Offset below which tombstones may be removed.",
        _PARTITION,
    ),
    Metric(
        "strandline_removal_ripe_markers",
        _G,
        "offset",
        "Offset below which markers may be removed.",
        _PARTITION,
    ),
    Metric(
        "strandline_removal_held_seconds",
        _G,
        "seconds",
        "For how long the same copies are behind the others, at the leader; 0: none is.",
        (*_PARTITION, "records"),
    ),
    Metric(
        "strandline_removal_holds", _G, "readers", "Readers that hold records of the partition.", _PARTITION
    ),
)

CHECKPOINTS: Final = (
    Metric(
        "strandline_checkpoint_documents_total",
        _C,
        "documents",
        "Checkpoint documents by kind (state, log, local) and result (published, given up).",
        ("kind", "result"),
    ),
    Metric("strandline_checkpoint_published_bytes_total", _C, "bytes", "Documents published, in bytes."),
    Metric("strandline_checkpoint_failed_puts_total", _C, "puts", "Failed attempts; each is retried."),
    Metric("strandline_checkpoint_waiting", _G, "documents", "States waiting for or in upload."),
    Metric(
        "strandline_checkpoint_waiting_bytes",
        _G,
        "bytes",
        "Bytes of states waiting for or in upload, and of their logs.",
    ),
    Metric("strandline_tails_published_total", _C, "objects", "Tails published."),
    Metric("strandline_tails_published_bytes_total", _C, "bytes", "Tails published, in bytes."),
    Metric("strandline_tail_states_total", _C, "states", "States in tails: beginnings of a group's entries."),
    Metric("strandline_tail_waiting_bytes", _G, "bytes", "Bytes of entries that wait for a tail."),
    Metric(
        "strandline_tail_age_seconds",
        _G,
        "seconds",
        "Seconds since all that was due was last in the store; absent while no tails are published.",
    ),
    Metric(
        "strandline_tail_points_total",
        _C,
        "points",
        "Tail points by result: taken, or missed, when something was new and no point could be put.",
        ("result",),
    ),
    Metric(
        "strandline_tail_point_age_seconds",
        _G,
        "seconds",
        "Seconds since the newest tail point had all that was published; absent where the node takes none.",
    ),
)

_VERSION: Final = ("program", "version")
VIEWS: Final = (
    Metric(
        "strandline_view_programs",
        _G,
        "programs",
        "Programs of views with a live version, with one that is being filled, and with one that stopped.",
        ("state",),
    ),
    Metric(
        "strandline_view_process_starts_total",
        _C,
        "processes",
        "Processes that were started here for a version of a program of views.",
        _VERSION,
    ),
    Metric(
        "strandline_view_process_failures_total",
        _C,
        "processes",
        "Processes of a version of a program of views that ended here although they were to run.",
        _VERSION,
    ),
    Metric(
        "strandline_view_phase",
        _G,
        "1",
        "Phase of the process of a version of a program of views; always 1.",
        (*_VERSION, "phase"),
    ),
    Metric(
        "strandline_view_records_total",
        _C,
        "records",
        "Records that the process of a version of a program of views has taken.",
        _VERSION,
    ),
    Metric(
        "strandline_view_changes_total",
        _C,
        "records",
        "Records that the process of a version of a program of views has written.",
        _VERSION,
    ),
    Metric(
        "strandline_view_skipped_records_total",
        _C,
        "records",
        "Bad records that the process of a version of a program of views has skipped.",
        _VERSION,
    ),
    Metric(
        "strandline_view_rows",
        _G,
        "rows",
        "Rows that the process of a version of a program of views keeps as its state.",
        _VERSION,
    ),
    Metric(
        "strandline_view_bytes",
        _G,
        "bytes",
        "Memory of the state that the process of a version of a program of views keeps.",
        _VERSION,
    ),
    Metric(
        "strandline_view_lag",
        _G,
        "records",
        "Decided records that a version of a program of views has not taken, if this node has all inputs.",
        _VERSION,
    ),
)

METRICS: Final = (
    *PROCESS,
    *KAFKA,
    *LEVEL_ZERO,
    *LEVEL_ONE,
    *COMPACTION,
    *COLLECTION,
    *REMOVAL,
    *RAFT,
    *CONTROLLER,
    *COORDINATOR,
    *CHECKPOINTS,
    *VIEWS,
    *PARTITION,
)
