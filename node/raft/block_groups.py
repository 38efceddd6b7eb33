"""Has a file system lay the folders of a folder far apart on its disk, and with them their files.

ext4 gives a new file the first free inode of its folder's block group, but passes by those whose files were
deleted in the last one to five minutes, one after the other. Where thousands of files come and go in one
folder, to make one took 0.3 to 0.4 ms of processor for that alone; in 32 folders, which ext4 had put into 32
groups as it was asked to, 0.02 ms.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from typing import Final

if sys.platform == "linux":
    import fcntl

_GET_FLAGS: Final = 0x8008_6601
_SET_FLAGS: Final = 0x4008_6602
"""FS_IOC_GETFLAGS and FS_IOC_SETFLAGS where a long has 64 bits."""
TOP_OF_FOLDERS: Final = 0x0002_0000
"""FS_TOPDIR_FL, `chattr +T`: the folders made in this one have nothing to do with each other."""
_FLAGS: Final = struct.Struct("=i4x")


def spread_folders(path: str) -> None:
    """Have the folders that are made below this one from now on lie apart, where a file system can do that.

    Blocks. It makes nothing less correct where it cannot, and says nothing then.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = _flags(descriptor)
            if not flags & TOP_OF_FOLDERS:
                fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(flags | TOP_OF_FOLDERS))
        finally:
            os.close(descriptor)


def flags_of(path: str) -> int:
    """The flags of a folder (chattr's). Raises OSError where its file system has none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _flags(descriptor)
    finally:
        os.close(descriptor)


def _flags(descriptor: int) -> int:
    flags: int = _FLAGS.unpack(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(_FLAGS.size)))[0]
    return flags
