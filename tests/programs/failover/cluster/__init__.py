"""The whole cluster under faults: real nodes, librdkafka's producers and consumer, then Spark's audits."""
