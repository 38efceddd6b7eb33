"""Tests of loops, threads and memory; and an event loop whose clock a test turns."""
