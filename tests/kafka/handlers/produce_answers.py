"""Short ways to read what Produce answered."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode


def only(response: Any) -> Any:
    """The answer of the only partition."""
    ((answer,),) = [topic.partition_responses for topic in response.responses]
    return answer


def codes(response: Any) -> list[ErrorCode]:
    return [one.error_code for topic in response.responses for one in topic.partition_responses]
