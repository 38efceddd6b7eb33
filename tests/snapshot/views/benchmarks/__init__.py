"""Queries of known benchmarks over small tables of our own, which change while the views are up."""
