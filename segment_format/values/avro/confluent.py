"""Avro values with the id of their writer's schema in front, in Confluent's wire format.

Avro's bytes follow the header. Values of many writers may come in one batch: each row is run by the
program of its id, so rows stay in order.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.values.avro.decoder import Runner
from segment_format.values.avro.projection import projected
from segment_format.values.avro.schema import AvroSchemaError
from segment_format.values.confluent_header import HEADER, REASONS, schema_ids
from segment_format.values.decoded import BadValue, DecodedValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from segment_format.values.avro.program import Program
    from segment_format.values.avro.schema import Schema

MOST_PROGRAMS: Final = 1000
"""Writers that are remembered; of more, those not used for longest are asked for again."""


class ConfluentAvroDecoder:
    """Decodes values that each name their writer's schema by its id.

    Args:
        reader: What is wanted.
        writer_schema: Gives the schema of an id. Raises LookupError or AvroSchemaError, with the
            reason, where there is none: then the values of that id are bad, and it is called again
            in the next batch. Whatever else it raises comes through `decode`.
        columns: Names of fields, joined by dots; only these are decoded. All by default.

    Raises:
        AvroSchemaError: A column that there is not.
    """

    def __init__(
        self,
        reader: Schema,
        writer_schema: Callable[[int], Schema],
        *,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._runner = Runner(reader if columns is None else projected(reader, columns))
        self._writer_schema = writer_schema
        self._programs: OrderedDict[int, Program | str] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._runner.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        if not len(values):
            return self._runner.run(values, ())
        ids = schema_ids(values)
        distinct, number_of = np.unique(ids, return_inverse=True)
        programs: list[Program] = []
        numbers = np.full(len(distinct), -1, np.int64)
        reasons: dict[int, str] = {}
        for number, schema_id in enumerate(distinct.tolist()):
            found = REASONS.get(schema_id) or self._program(schema_id)
            if isinstance(found, str):
                reasons[number] = found
            else:
                numbers[number] = len(programs)
                programs.append(found)
        bad: list[BadValue] = []
        if reasons:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            rows = np.flatnonzero((numbers[number_of] < 0) & valid).tolist()
            bad = [BadValue(row, "", reasons[int(number_of[row])]) for row in rows]
        program_of = np.ascontiguousarray(numbers[number_of])
        return self._runner.run(values, programs, program_of=program_of, prefix=HEADER, bad=bad)

    def _program(self, schema_id: int) -> Program | str:
        """The program of a writer, or why there is none."""
        with self._lock:
            found = self._programs.get(schema_id)
            if found is not None:
                self._programs.move_to_end(schema_id)
                return found
        try:
            writer = self._writer_schema(schema_id)
        except (LookupError, AvroSchemaError) as error:
            # The caller knows for how long.
            return f"schema {schema_id}: {_text(error)}"
        try:
            found = self._runner.compiled(writer)
        except AvroSchemaError as error:
            found = f"schema {schema_id}: {error}"
        with self._lock:
            self._programs[schema_id] = found
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        return found


def _text(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
