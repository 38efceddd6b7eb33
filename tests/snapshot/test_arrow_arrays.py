"""Arrays by their buffers are those that pyarrow makes of the same values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.snapshot.arrow_arrays import booleans, numbers, texts


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.booleans()), max_size=20))
def test_numbers_and_booleans(rows: list[tuple[int, bool]]) -> None:
    values = np.array([value for value, _ in rows], np.int64)
    mask = np.array([null for _, null in rows], np.bool_)
    for kind in (np.int64, np.int32):
        for made in (values.astype(kind), values.astype(kind)[::2]):
            assert numbers(made).equals(pa.array(made))
        assert numbers(values.astype(kind), mask).equals(pa.array(values.astype(kind), mask=mask))
    assert booleans(mask).equals(pa.array(mask))


@pytest.mark.parametrize("values", [[], ["orders"], ["", "ä", "naïve", "x" * 300]])
def test_texts(values: list[str]) -> None:
    made = texts(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))
