"""Topologies of views on a real cluster: `scripts/views-topologies`."""
