"""Spark's worker daemon, which imports the modules of tasks before it forks workers.

Spark does not reuse a worker after a LIMIT ended its task early. A new worker must import pyarrow
and the store's client and link the decoder, which takes longer than a short query. With

    spark.python.daemon.module=kts_source.spark.daemon

set when the session is created, each executor imports them once. This helps with many short
queries, as in notebooks. The package must be installed on the executors.

Spark starts a daemon for each kind of worker and passes the kind as first argument; only the daemon
for tasks imports modules in advance.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from typing import Final

from segment_format.tuning import is_on

MODULES: Final = (
    "pandas",  # pyarrow imports it with the first value that `where` compares
    "pyspark.sql.pandas.types",
    "segment_format.arrow",
    "kts_source.read.read_task",
    "kts_source.read.slice_decoder",
    "kts_source.spark.datasource",
    "kts_source.spark.readers",
    "kts_source.store.s3_store",
    "kts_source.store.local_store",
    "botocore.auth",
    "botocore.session",
    "s3fs",
)


def preload() -> None:
    """Imports the installed modules of `MODULES`. They start no threads and open no files, so the
    process can fork.
    """
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from segment_format.kernels.decoder import load_kernel

    load_kernel()
    if is_on():
        # Children share the memory of these objects until their garbage collector writes to it.
        gc.collect()
        gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    if is_on() and sys.argv[1:2] in ([], ["pyspark.worker"]):
        preload()
    manager()
