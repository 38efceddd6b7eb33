"""Spark on state at rest: topics as data frames, audits, and their report."""
