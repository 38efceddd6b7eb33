"""Coordinators: what a node does for consumer groups and transactions, as a replica and as a leader."""
