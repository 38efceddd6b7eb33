"""Tests of state at rest: the formats of documents and objects."""
