"""Checkpoints: every replica's state at one entry of its log, published to the object store."""
