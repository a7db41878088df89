"""Keys and values of rows decoded, as options `key.format` and `value.format` say."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from kts_source.columns import ERROR_COLUMNS, PARTITION, RAW_COLUMNS, TOPIC
from kts_source.errors import InvalidValueError, Place, TieredKafkaError
from kts_source.options.value_formats import DROP_MALFORMED, FAILFAST, PERMISSIVE
from kts_source.read.value_decoders import value_decoder
from kts_source.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kts_source.options.value_formats import ColumnFormat
    from kts_source.read.task_metrics import TaskMeter
    from segment_format.values.decoded import BadValue

log = logging.getLogger(__name__)

_PLACE: Final = (TOPIC, PARTITION, "offset")
_SOURCES: Final = {raw: column for column, raw in RAW_COLUMNS.items()}

SetAside: TypeAlias = "Callable[[pa.RecordBatch, Mapping[int, str]], object]"
"""Takes rows as they are stored, and why some of them cannot be decoded, by their number."""


class TypedRows:
    """Decodes batches of rows.

    Args:
        columns: Those wanted, in order.
        formats: How keys and values are decoded.
        set_aside: Given malformed rows, which are then left out; not those of mode PERMISSIVE.
    """

    def __init__(
        self,
        columns: Sequence[str],
        formats: Iterable[ColumnFormat],
        set_aside: SetAside | None = None,
    ) -> None:
        self._columns = list(columns)
        self._set_aside = set_aside
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
        place = _PLACE if self._formats else ()
        self.read_columns = tuple(dict.fromkeys((*plain, *decoded, *place)))

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
                read, rows, error = self._rows(batch)
                if meter is not None:
                    meter.stopwatch.decode += time.perf_counter() - began
                dropped += read - rows.num_rows
                if rows.num_rows:
                    yield rows
                if error is not None:
                    raise error
        finally:
            if dropped:
                log.warning("%d rows are left out: they cannot be decoded", dropped)
                if meter is not None:
                    meter.malformed += dropped

    def _rows(self, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch, InvalidValueError | None]:
        """How many rows were decoded, what became of them, and why there are no more."""
        found = {name: batch.column(name) for name in batch.schema.names}
        found |= {raw: found[column] for raw, column in _SOURCES.items() if column in found}
        kept = None
        reasons: dict[int, str] = {}
        for form in self._formats:
            try:
                values = value_decoder(form).decode(batch.column(form.column))
            except TieredKafkaError as error:  # of the registry
                raise error.located(**_place(batch, 0)) from None
            if values.bad and form.mode == FAILFAST and self._set_aside is None:
                # Those before it are fine, however many a batch holds: a limit may want no more.
                bad = values.bad[0]
                read, rows, earlier = self._rows(batch.slice(0, bad.row))
                return read, rows, earlier or _error(batch, form, bad)
            if values.bad and form.mode != PERMISSIVE:
                if self._set_aside is not None:
                    reasons = {
                        bad.row: f"{form.column}: {_text(bad)}" for bad in values.bad
                    } | reasons
                kept = np.ones(batch.num_rows, np.bool_) if kept is None else kept
                kept[[bad.row for bad in values.bad]] = False
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
        return batch.num_rows, rows, None


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
