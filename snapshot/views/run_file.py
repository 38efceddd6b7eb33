"""Run files: a run as one Arrow IPC file, to be mapped into memory and not read.

The file has one record batch: the index is searched as one array. Its schema's metadata have the version, the
kind of hash, the columns of the key, rows, and lowest and highest hash. Behind Arrow's own end stand four
bytes of magic and the CRC-32C of all before them. A file is not compressed. The form for object storage,
where each byte is paid for, is, and is otherwise the same.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, Final

import crc32c
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.views import hashing
from strandline.snapshot.views.errors import RunDamaged
from strandline.snapshot.views.run import Layout, Run, run_of
from strandline.snapshot.views.zset import Weights, own_text

VERSION: Final = 1
_ABOUT: Final = b"strandline.run"
_MAGIC: Final = b"RUN1"
_TRAILER: Final = struct.Struct("<4sI")
_PIECE: Final = 1 << 20
"""Bytes that are read at a time."""


def packed(run: Run) -> list[bytes | memoryview]:
    """Give a run as an object's parts, compressed."""
    return _parts(run, compressed=True)


def unpacked(name: str, stored: bytes | bytearray | memoryview) -> Run:
    """Read what `packed` gave into memory; raises RunDamaged for anything else, by its `name`."""
    return _checked(name, pa.py_buffer(stored), check=True)


def write_run(path: Path, run: Run) -> int:
    """Write a run to a new file and sync it; its CRC. Raises OSError, FileExistsError too."""
    content, trailer = _parts(run, compressed=False)
    with path.open("xb") as file:
        file.write(content)
        file.write(trailer)
        file.flush()
        os.fsync(file.fileno())
    crc: int = _TRAILER.unpack(trailer)[1]
    return crc


def check_run(path: Path) -> int:
    """Read a run's file to its end; the CRC that it has. Raises RunDamaged where that is not the content's.

    It reads and does not map: a place of the disk that cannot be read is then an OSError.
    """
    with path.open("rb") as file:
        left, crc = os.fstat(file.fileno()).st_size - _TRAILER.size, 0
        while left > 0 and (piece := file.read(min(left, _PIECE))):
            crc, left = crc32c.crc32c(piece, crc), left - len(piece)
        trailer = file.read()
    if left or trailer != _TRAILER.pack(_MAGIC, crc):
        raise RunDamaged(f"{path}: the bytes are not those that were written")
    return crc


def map_run(path: Path) -> Run:
    """Map a run's file: only pages that are used are read, and what they have is not checked.

    Raises RunDamaged for a file that is not what `write_run` wrote, OSError when it cannot be read.
    """
    try:
        with pa.memory_map(str(path)) as file:
            whole = file.read_buffer()
    except pa.ArrowException as error:
        raise RunDamaged(f"{path} is not a run: {' '.join(str(error).split())}") from None
    return _checked(str(path), whole, check=False)


def _parts(run: Run, *, compressed: bool) -> list[bytes | memoryview]:
    ties = [] if run.ties is None else [run.ties]
    arrays = [*map(pa.array, (run.hashes, *run.sums, *ties))]
    # Arrow's own layout of strings is what polars has in memory, so a mapped file needs no conversion.
    columns = own_text(run.rows.rechunk()).to_arrow(compat_level=pl.CompatLevel.newest())
    arrays += [_one_chunk(column) for column in columns.columns]
    about = {
        "version": VERSION,
        "hash": hashing.KIND,
        "key": run.layout.key,
        "sums": run.layout.sums,
        "wide": run.layout.wide,
        "ties": len(ties),
        "order": run.layout.order,
        "rows": len(run),
        "lowest": int(run.hashes[0]) if len(run) else 0,
        "highest": int(run.hashes[-1]) if len(run) else 0,
    }
    schema = pa.schema(
        [(f"f{number}", array.type) for number, array in enumerate(arrays)], {_ABOUT: json.dumps(about)}
    )
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    options = pa.ipc.IpcWriteOptions(compression="zstd" if compressed else None)
    written = pa.BufferOutputStream()
    with pa.ipc.new_file(written, schema, options=options) as writer:
        writer.write_batch(batch)
    content = memoryview(written.getvalue()).cast("B")
    return [content, _TRAILER.pack(_MAGIC, crc32c.crc32c(content))]


def _checked(name: str, whole: pa.Buffer, *, check: bool) -> Run:
    try:
        content, (magic, crc) = whole[: -_TRAILER.size], _TRAILER.unpack(whole[-_TRAILER.size :])
        if magic != _MAGIC or (check and crc32c.crc32c(content) != crc):
            raise RunDamaged(f"{name}: the bytes are not those that were written")
        reader = pa.ipc.open_file(pa.BufferReader(content))
        about = json.loads(reader.schema.metadata[_ABOUT])
        if about["version"] != VERSION:
            raise RunDamaged(f"{name} has version {about['version']}; this program reads {VERSION}")
        return _run(name, about, reader.get_batch(0).columns)
    except (pa.ArrowException, struct.error, KeyError, TypeError, ValueError, IndexError) as error:
        raise RunDamaged(f"{name} is not a run: {' '.join(str(error).split())}") from None


def _run(name: str, about: dict[str, Any], arrays: list[pa.Array]) -> Run:
    after_sums = 1 + about["sums"]
    hashes = arrays[0].to_numpy()
    sums: tuple[Weights, ...] = tuple(array.to_numpy() for array in arrays[1:after_sums])
    ties = arrays[after_sums].to_numpy() if about["ties"] else None
    own = arrays[after_sums + about["ties"] :]
    rows = pl.DataFrame([pl.Series(f"c{number}", column) for number, column in enumerate(own)])
    # Files of builds that had no ordered runs do not say by what they are ordered.
    layout = Layout(
        tuple(rows.dtypes), tuple(about["key"]), about["sums"], tuple(about["wide"]), about.get("order")
    )
    if not len(hashes) == about["rows"] == rows.height:
        raise RunDamaged(f"{name} has {len(hashes)} rows, not {about['rows']}")
    if about["hash"] != hashing.KIND:
        return run_of(layout, rows, sums)
    return Run(layout, hashes, ties, rows, sums)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
