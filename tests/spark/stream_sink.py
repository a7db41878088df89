"""Provides a sink for tests that stores the rows of each batch by its number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tests.golden_data import SPARK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Sink:
    """Stores the rows of batches by batch number. Rows of a replayed batch replace the stored
    rows.
    """

    def __init__(self) -> None:
        self.batches: dict[int, pa.Table] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = frame.toArrow().cast(SPARK_SCHEMA)

    def rows(self) -> pa.Table:
        return pa.concat_tables([SPARK_SCHEMA.empty_table(), *self.batches.values()])
