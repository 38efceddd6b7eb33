"""Strandline: a Kafka-compatible streaming log whose records lie in object storage.

The repository's folders are the packages below this one: `strandline.node`, `strandline.cluster` and so on.
"""
