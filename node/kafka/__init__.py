"""Kafka's wire protocol: from bytes on a connection to requests and back; it knows no topic and no log.

What is spoken, the limits and what closes a connection stand in docs/kafka-protocol.md.
"""
