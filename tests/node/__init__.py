"""Tests of a node as a whole: its process, and calls between nodes."""
