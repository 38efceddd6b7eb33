"""Whole nodes in the simulator: the brokers, the object store and the Kafka clients of one cluster."""
