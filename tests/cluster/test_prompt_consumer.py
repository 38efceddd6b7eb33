"""A view's consumer gives a record that comes alone at once, and waits only where there is none."""

from __future__ import annotations

import time

from confluent_kafka import Producer, TopicPartition

from strandline.cluster.view_worker.prompt_consumer import PromptConsumer

LONG_SECONDS = 20.0


def read_alone(brokers: str) -> float:
    """Seconds until a consumer that may wait for long for many messages gives the only one there is."""
    consumer = PromptConsumer({"bootstrap.servers": brokers, "group.id": "g"})
    consumer.assign([TopicPartition("alone", 0, 0)])
    began = time.monotonic()
    (message,) = consumer.consume(200, LONG_SECONDS)
    took = time.monotonic() - began
    assert message.value() == b"one"
    assert consumer.consume(200, 0.01) == []
    consumer.close()
    return took


def test_a_record_that_comes_alone_is_given_at_once() -> None:
    # librdkafka's own brokers, in this process.
    producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    (broker,) = producer.list_topics("alone", 10).brokers.values()
    producer.produce("alone", b"one", partition=0)
    assert producer.flush(10) == 0
    assert read_alone(f"127.0.0.1:{broker.port}") < LONG_SECONDS / 2
