"""Compacted topics: each replica's own log, without its superseded records. docs/compaction.md."""
