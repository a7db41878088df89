"""Keys and values of rows decoded, as options `key.format` and `value.format` say."""

from __future__ import annotations

import logging
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from kts_source.columns import ERROR_COLUMNS, PARTITION, RAW_COLUMNS, TOPIC
from kts_source.errors import InvalidValueError, Place, TieredKafkaError
from kts_source.options.value_formats import DROP_MALFORMED, FAILFAST, PERMISSIVE
from kts_source.read.header_ids import framed, needed_columns
from kts_source.read.typed_filter import TypedFilter
from kts_source.read.value_decoders import value_decoder
from kts_source.texts import one_line
from segment_format.values.decoded import BadValue, DecodedValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kts_source.options.value_formats import ColumnFormat
    from kts_source.predicate.model import Predicate
    from kts_source.read.task_metrics import TaskMeter

Bad = tuple[BadValue, ...]
_Outcome = tuple[int, pa.RecordBatch, InvalidValueError | None]

log = logging.getLogger(__name__)

_PLACE: Final = (TOPIC, PARTITION, "offset")
_NONE: Final[Mapping[str, Bad]] = MappingProxyType({})
_SOURCES: Final = {raw: column for column, raw in RAW_COLUMNS.items()}

SetAside: TypeAlias = "Callable[[pa.RecordBatch, Mapping[int, str]], object]"
"""Takes rows as they are stored, and why some of them cannot be decoded, by their number."""


class TypedRows:
    """Decodes batches of rows.

    Args:
        columns: Those wanted, in order.
        formats: How keys and values are decoded.
        where: A condition on their fields; rows for which it is not true are left out.
        set_aside: Given malformed rows, which are then left out; not those of mode PERMISSIVE.
    """

    def __init__(
        self,
        columns: Sequence[str],
        formats: Sequence[ColumnFormat],
        where: Predicate | None = None,
        set_aside: SetAside | None = None,
    ) -> None:
        self._columns = list(columns)
        self._set_aside = set_aside
        self._filter = (
            None if where is None else TypedFilter(where, formats, fails=set_aside is None)
        )
        # Which rows there are must not depend on which columns are asked for.
        self._formats = [
            one
            for one in formats
            if one.mode == DROP_MALFORMED
            or one.column in columns
            or (one.error_column is not None and one.error_column in columns)
        ]
        plain = [_SOURCES.get(one, one) for one in columns if one not in ERROR_COLUMNS.values()]
        decoded = [one.column for one in self._formats]
        # What an error has to name.
        place = _PLACE if self._formats or self._filter is not None else ()
        deciding = () if self._filter is None else self._filter.columns
        beside = needed_columns(self._formats)
        self.read_columns = tuple(dict.fromkeys((*plain, *decoded, *place, *deciding, *beside)))

    def decoded(
        self, batches: Iterable[pa.RecordBatch], meter: TaskMeter | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of batches that have `read_columns`.

        Raises:
            InvalidValueError: A value that cannot be decoded, with mode FAILFAST.
            RegistryError: The registry does not answer.
        """
        dropped = 0
        try:
            for batch in batches:
                began = time.perf_counter()
                malformed, rows, error = self._wanted(batch)
                if meter is not None:
                    meter.stopwatch.decode += time.perf_counter() - began
                dropped += malformed
                if rows.num_rows:
                    yield rows
                if error is not None:
                    raise error
        finally:
            if dropped:
                log.warning("%d rows are left out: they cannot be decoded", dropped)
                if meter is not None:
                    meter.malformed += dropped

    def _wanted(self, batch: pa.RecordBatch) -> _Outcome:
        """As `_rows`, of the rows that are wanted."""
        if self._filter is None:
            return self._rows(batch)
        try:
            kept = self._filter.kept(batch)
        except TieredKafkaError as error:  # of the registry
            raise error.located(**_place(batch, 0)) from None
        if self._set_aside is not None and kept.dropped:
            reasons: dict[int, str] = {}
            for column, bad in kept.dropped.items():
                reasons = _named(column, bad) | reasons
            self._set_aside(batch, dict(sorted(reasons.items())))
        malformed, rows, failure = 0, kept.batch, None
        if rows.num_rows:
            malformed, rows, failure = self._rows(kept.batch, kept.bad)
        if failure is None and kept.failed is not None:
            failure = _error(kept.failed.batch, kept.failed.form, kept.failed.bad)
        return malformed + kept.malformed, rows, failure

    def _rows(self, batch: pa.RecordBatch, known: Mapping[str, Bad] = _NONE) -> _Outcome:
        """How many rows are malformed and left out, the others, and why there are no more.

        Args:
            batch: Rows.
            known: Column -> values known to be bad.
        """
        found = {name: batch.column(name) for name in batch.schema.names}
        found |= {raw: found[column] for raw, column in _SOURCES.items() if column in found}
        kept = None
        reasons: dict[int, str] = {}
        for form in self._formats:
            try:
                values = value_decoder(form).decode(framed(batch, form))
            except TieredKafkaError as error:  # of the registry
                raise error.located(**_place(batch, 0)) from None
            if values.bad and form.mode == FAILFAST and self._set_aside is None:
                # Those before it are fine, however many a batch holds: a limit may want no more.
                bad = values.bad[0]
                malformed, rows, earlier = self._rows(batch.slice(0, bad.row), known)
                return malformed, rows, earlier or _error(batch, form, bad)
            if values.bad and form.mode != PERMISSIVE:
                if self._set_aside is not None:
                    reasons = _named(form.column, values.bad) | reasons
                kept = np.ones(batch.num_rows, np.bool_) if kept is None else kept
                kept[[bad.row for bad in values.bad]] = False
            if earlier_bad := known.get(form.column):
                values = _with_bad(values, earlier_bad)
            found[form.column] = values.array
            if form.error_column is not None:
                found[form.error_column] = _reasons(batch.num_rows, values.bad)
        if self._set_aside is not None and reasons:
            self._set_aside(batch, dict(sorted(reasons.items())))
        rows = pa.RecordBatch.from_arrays(
            [found[name] for name in self._columns], names=self._columns
        )
        if kept is not None:
            rows = rows.filter(pa.array(kept))
        return batch.num_rows - rows.num_rows, rows, None


def _with_bad(values: DecodedValues, known: Bad) -> DecodedValues:
    """The values, those null that are known to be bad."""
    by_row = {one.row: one for one in (*known, *values.bad) if one.row < len(values.array)}
    null = np.zeros(len(values.array), np.bool_)
    null[list(by_row)] = True
    rows = pa.array(np.arange(len(null)), mask=null)
    bad = tuple(by_row[row] for row in sorted(by_row))
    return DecodedValues(values.array.take(rows), bad)


def _named(column: str, values: Bad) -> dict[int, str]:
    """By row: which column cannot be decoded, and why."""
    return {bad.row: f"{column}: {_text(bad)}" for bad in values}


def _reasons(rows: int, bad: Sequence[BadValue]) -> pa.Array:
    if not bad:
        return pa.nulls(rows, pa.string())
    reasons: list[str | None] = [None] * rows
    for one in bad:
        reasons[one.row] = _text(one)
    return pa.array(reasons, pa.string())


def _text(bad: BadValue) -> str:
    # Both may hold what a writer's schema says, of megabytes, and there is one for each row.
    reason = one_line(bad.reason)
    return f"{one_line(bad.path)}: {reason}" if bad.path else reason


def _error(batch: pa.RecordBatch, form: ColumnFormat, bad: BadValue) -> InvalidValueError:
    return InvalidValueError(
        f"the {form.column} is not what option '{form.column}.format' ({form.format}) says:"
        f" {_text(bad)}; {form.column}.mode=PERMISSIVE gives null instead,"
        f" {form.column}.mode=DROPMALFORMED leaves such rows out",
        **_place(batch, bad.row),
    )


def _place(batch: pa.RecordBatch, row: int) -> Place:
    return Place(
        topic=batch.column(TOPIC)[row].as_py(),
        partition=batch.column(PARTITION)[row].as_py(),
        offset=batch.column("offset")[row].as_py(),
    )
