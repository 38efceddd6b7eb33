"""Compacted topics on simulated nodes: every copy of a table against all that was ever written."""
