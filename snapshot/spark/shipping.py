"""The package as one zip for the executors of a cluster, where it need not be installed.

Executors need what reads and writes: not a node, nor the command. Its libraries (numpy, pandas, pyarrow, …)
have to be there, since they are compiled for the machine. See docs/spark.md, "On a cluster".
"""

from __future__ import annotations

import zipfile
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from strandline.snapshot.spark.no_spark import require_context
from strandline.snapshot.spark.program_folder import program_folder

_NAME = "strandline.zip"
_TOP = Path(__file__).parents[2]
"""Folder of the package `strandline`; no folder in a zip."""
_FOUND_BY = _TOP.with_name(f"pyspark_{_TOP.name}")
_PARTS = ("snapshot", "statemachine")
"""Of `strandline`, beside the modules at its top."""


def ship(spark: SparkSession) -> None:
    """Send this package to all executors of a session, those that join later too, for as long as it lasts.

    A session may be given it again. A driver whose own package is a zip, as with `spark-submit --py-files`,
    has sent that one already. Raises NoContext for a session of Spark Connect.
    """
    require_context(
        spark, "ship() needs", "install the package in the Python of the server and its executors"
    )
    if _TOP.is_dir():
        spark.sparkContext.addPyFile(str(_packed()))


@cache
def _packed() -> Path:
    """This process's zip, which executors fetch while it runs; Spark takes a name from one place only."""
    made = Path(program_folder("shipped-"))
    pack(made / _NAME)
    return made / _NAME


def pack(path: Path) -> None:
    """Write the zip that `spark.submit.pyFiles` and `spark-submit --py-files` take: a file `….zip`."""
    files = [(file, _TOP.name) for file in _TOP.glob("*.py")]
    files += [(file, _FOUND_BY.name) for file in _FOUND_BY.glob("*.py")]
    for part in _PARTS:
        folder = _TOP / part
        files += [
            (file, str(Path(_TOP.name, part, file.parent.relative_to(folder))))
            for file in folder.rglob("*.py")
        ]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file, place in sorted(files):
            packed.write(file, f"{place}/{file.name}")
