"""Compacted topics: each replica's own log, of which what is superseded is removed. docs/compaction.md."""
