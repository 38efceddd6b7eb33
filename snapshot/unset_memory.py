"""Memory for bytes that are all written before any of them is read: to zero it first would be work in vain.

`bytearray(size)` writes zeros. For an object of 64 MiB that takes a twentieth of all that is done
to make it.
"""

from __future__ import annotations

import ctypes
from typing import Final

_MAKE: Final = ctypes.pythonapi.PyByteArray_FromStringAndSize
_MAKE.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_MAKE.restype = ctypes.py_object


def unset_bytes(size: int) -> bytearray:
    """A buffer of so many bytes, which are whatever was in memory."""
    if size < 0:
        raise ValueError(f"a buffer cannot have {size} bytes")
    made: bytearray = _MAKE(None, size)
    return made
