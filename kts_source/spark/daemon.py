"""Spark's worker daemon, with what tasks import loaded before it forks them.

A worker that a LIMIT ended early is not used again: the next one starts from the daemon, and
imports pyarrow and the client of the store, and links the decoder, anew: longer than the few
requests of the query itself. With

    spark.python.daemon.module=kts_source.spark.daemon

set when the session is made, they are imported once for each executor. Of use where many short
queries are asked, as in notebooks; the package must be installed on the executors.

Spark starts a daemon of its own for each kind of worker and names the kind in the first argument;
only the one for tasks is loaded in advance.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from typing import Final

from segment_format.tuning import is_on

MODULES: Final = (
    "pandas",  # pyarrow brings it in with the first value that `where` compares
    "pyspark.sql.pandas.types",
    "segment_format.arrow",
    "kts_source.read.read_task",
    "kts_source.spark.datasource",
    "kts_source.spark.readers",
    "kts_source.store.s3_store",
    "kts_source.store.local_store",
    "botocore.auth",
    "botocore.session",
    "s3fs",
)


def preload() -> None:
    """Imports what is installed of `MODULES`. Starts no thread of Python's and opens nothing, so
    that what has been loaded survives a fork.
    """
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from segment_format.kernels.decoder import load_kernel

    load_kernel()
    if is_on():
        # Children share these objects as long as their collector leaves them alone.
        gc.collect()
        gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    if is_on() and sys.argv[1:2] in ([], ["pyspark.worker"]):
        preload()
    manager()
