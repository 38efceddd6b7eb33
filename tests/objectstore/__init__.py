"""Tests of folders and buckets, of retries, and of the owner of a storage."""
