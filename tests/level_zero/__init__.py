"""Tests of level zero: what an object is, where it is kept, how batches get in and out."""
