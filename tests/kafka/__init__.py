"""Tests of Kafka's port: the wire protocol, and what each request does."""
