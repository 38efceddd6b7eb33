"""Tests of regular expressions over names."""
