"""The whole cluster under faults: real nodes, librdkafka's producers and consumer, Spark's audits at the end."""
