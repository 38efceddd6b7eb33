"""What a worker makes of a flight: a pure function, so that the source tells what must come out."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from strandline.cluster.demo.flights import Flight

SOURCE: Final = "flights"
TARGET: Final = "gains"
GROUP: Final = "gains"
PARTITIONS: Final = 12
ROW_HEADER: Final = "row"
FROM_HEADER: Final = "from"
"""The offset of the source's record; partition n of the target is made of partition n of the source."""


def transform(value: bytes) -> bytes:
    """How many minutes a flight made up for in the air, and a digest that shows what it was made of."""
    flight: dict[str, Any] = json.loads(value)
    late, behind = flight["dep_delay"], flight["arr_delay"]
    made = {
        "carrier": flight["carrier"],
        "flight": flight["flight"],
        "route": f"{flight['origin']}-{flight['dest']}",
        "gain": None if late is None or behind is None else late - behind,
        "of": hashlib.sha256(value).hexdigest()[:16],
    }
    return json.dumps(made, separators=(",", ":")).encode()


def expected(flights: list[Flight]) -> list[bytes]:
    """What the target has to hold, by row."""
    return [transform(flight.value) for flight in flights]
