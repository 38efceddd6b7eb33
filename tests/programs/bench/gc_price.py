"""What requests cost where a store bills them. The prices are assumptions, named in every report.

They are the list prices of S3 Standard in us-east-1 as of 2025, in US dollars: a bucket in the nodes' own
region, so that traffic is free. Other stores charge in the same way, and not very differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PER_THOUSAND: Final = {
    "put": 0.005,
    "list": 0.005,
    "get": 0.0004,
    "get_range": 0.0004,
    "size": 0.0004,
    "delete": 0.0,
}
"""By operation as stores here name them; S3 bills neither deletions nor traffic within the region."""
ASSUMED: Final = (
    "prices assumed: S3 Standard, us-east-1: $0.005 per 1,000 PUT or LIST, $0.0004 per 1,000 GET, DELETE and "
    "traffic within the region free"
)


def dollars(requests: Mapping[str, float]) -> float:
    """The price of some requests, by operation."""
    return sum(count * PER_THOUSAND[operation] / 1000 for operation, count in requests.items())
