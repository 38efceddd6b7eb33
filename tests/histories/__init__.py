"""Judges of histories: what clients did and saw, and whether the promises were kept."""
