"""What the futures of librdkafka's AdminClient came to."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException


def done(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(60) for future in futures.values()]


def refused(futures: dict[Any, Any]) -> str:
    with pytest.raises(KafkaException) as caught:
        done(futures)
    return str(caught.value.args[0].name())
