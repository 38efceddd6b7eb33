"""Kafka's wire protocol: from bytes on a connection to requests and back; it knows no topic and no log.

docs/kafka-protocol.md has the supported requests, the limits, and the errors that close a connection.
"""
