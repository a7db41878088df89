"""A scan as a `pyarrow.dataset.Dataset`: DuckDB, and whatever else queries one."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from kts_source.engines.arrow_conditions import certain_part, columns_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc

    from kts_source.engines.scan import Scan


class TierDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow ships no types
    """The rows of a scan, read anew for each query with the columns and conditions it asks for.

        tier = kts_source.scan(source).to_dataset()
        duckdb.sql("select count(*) from tier where partition = 1")

    DuckDB does not filter again what it hands to a dataset, so the whole condition is applied here.

    Args:
        scan: What is read.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self._scan.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # pyarrow's name
        **arguments: Any,  # noqa: ANN401  # pyarrow's own, for its reading of files
    ) -> ds.Scanner:
        """What reads the rows of one query, once.

        Args:
            columns: Names, in order; `None` = all.
            filter: Rows for which it is not true are left out.
            **arguments: Passed on to pyarrow.
        """
        wanted = tuple(self._scan.columns if columns is None else columns)
        needed = dict.fromkeys(wanted)
        scan = self._scan
        if filter is not None:
            needed |= dict.fromkeys(columns_in(filter, scan.columns))
            certain = None if scan.is_limited else certain_part(filter, scan.schema)
            scan = scan if certain is None else scan.where_predicate(certain)
        part = scan.select(list(needed) or scan.columns[:1])
        known = {
            name: arguments[name] for name in ("batch_size", "use_threads") if name in arguments
        }
        return ds.Scanner.from_batches(
            _rows(part), schema=part.schema, columns=list(wanted), filter=filter, **known
        )

    def _repr_html_(self) -> str:
        return self._scan._repr_html_()  # notebooks call it by this name


def _rows(scan: Scan) -> Iterator[pa.RecordBatch]:
    with closing(scan.batches()) as batches:
        yield from batches
