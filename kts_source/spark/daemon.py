"""Replaces Spark's worker daemon by one that imports the modules of tasks before it forks workers.

If a LIMIT ends a task early, Spark does not reuse the worker. A new worker must import pyarrow and
the client library of the store, and link the decoder. This takes longer than a short query. If the
session is created with

    spark.python.daemon.module=kts_source.spark.daemon

each executor imports the modules only once. This makes a sequence of short queries faster, as in
notebooks. This package must be installed on the executors.

Spark starts one daemon for each kind of worker, with the kind as first argument. Only the daemon
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
    """Imports those modules of `MODULES` that are installed. They start no threads and open no
    files, so it is safe to fork the process afterwards.
    """
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from segment_format.kernels.native import load_kernel

    load_kernel("decode_window")
    if is_on():
        # Forked workers share the memory of these objects as long as no garbage collection writes
        # to them. Frozen objects are not collected.
        gc.collect()
        gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    if is_on() and sys.argv[1:2] in ([], ["pyspark.worker"]):
        preload()
    manager()
