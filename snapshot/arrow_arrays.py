"""Arrow arrays of NumPy's, by their buffers.

`pyarrow.array` asks whether it was given something of pandas, and imports pandas for it. That is a quarter
of a second of processor in each process that decodes records; a micro-batch takes a tenth of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray


def numbers(values: NDArray[Any], null: NDArray[np.bool_] | None = None) -> Any:
    """The same numbers, which are not copied; null where the mask says so."""
    valid = None if null is None else _bits(~null)
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [valid, data])


def booleans(values: NDArray[np.bool_]) -> Any:
    """The same values, packed into bits."""
    return pa.Array.from_buffers(pa.bool_(), values.size, [None, _bits(values)])


def texts(values: Sequence[str]) -> Any:
    """The same texts, none of which is null."""
    encoded = [value.encode() for value in values]
    edges = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(one) for one in encoded], out=edges[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(edges), pa.py_buffer(b"".join(encoded)))


def _bits(values: NDArray[np.bool_]) -> Any:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
