"""Raft groups of one node: write-ahead log, mesh between nodes, groups and their host."""
