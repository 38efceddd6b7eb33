"""Raft's rules: election, replication, leases, reads, quiescence, membership."""
