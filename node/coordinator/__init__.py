"""Coordinators of consumer groups and transactions on one node, as a replica and as a leader."""
