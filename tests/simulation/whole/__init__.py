"""The whole node in the simulator: brokers, an object store and Kafka clients of one cluster, from one seed."""
