"""Types of columns."""

from __future__ import annotations

import enum
from typing import Final


class Type(enum.Enum):
    """A column's type, by its name in SQL. TIMESTAMP has microseconds and is UTC."""

    BOOLEAN = "BOOLEAN"
    INT = "INT"
    BIGINT = "BIGINT"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"


WHOLE: Final = (Type.INT, Type.BIGINT)
NUMERIC: Final = (*WHOLE, Type.DOUBLE)
