"""Avro values of many writers in one batch: each row is run by the program of its writer, so rows
stay in order.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import numpy as np

from segment_format.values.avro.columns import projected
from segment_format.values.avro.decoder import JSON_TEXT, Runner, json_objects
from segment_format.values.avro.schema import BYTES, AvroSchemaError, Primitive
from segment_format.values.confluent_header import with_lengths
from segment_format.values.decoded import BadValue, DecodedValues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from segment_format.values.avro.program import Program
    from segment_format.values.avro.schema import Schema

K = TypeVar("K", bound="int | str")

MOST_PROGRAMS: Final = 1000
"""Writers that are remembered; of more, those not used for longest are asked for again."""


class _Writer(NamedTuple):
    """How values of one writer's schema are decoded.

    Attributes:
        program: The program, or why there is none.
        has_bare_bytes: Whether the values are bytes without their length.
    """

    program: Program | str
    has_bare_bytes: bool = False


class ByWriter(Generic[K]):
    """Decodes values whose headers are read already.

    Args:
        reader: What is wanted.
        writer_schema: See `ConfluentAvroDecoder`.
        columns: Names of fields, joined by dots; only these are decoded. All by default.
        bare_bytes: Whether values of the schema `"bytes"` have no length in front.

    Raises:
        AvroSchemaError: A column that there is not.
    """

    def __init__(
        self,
        reader: Schema,
        writer_schema: Callable[[K], Schema],
        columns: Sequence[str] | None,
        *,
        bare_bytes: bool = False,
    ) -> None:
        self._runner = Runner(reader if columns is None else projected(reader, columns))
        self._writer_schema = writer_schema
        self._bare_bytes = bare_bytes
        self._programs: OrderedDict[K, _Writer] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._runner.type

    def decode(
        self,
        values: pa.Array,
        writers: Sequence[K],
        number_of: NDArray[np.int64],
        headless: Mapping[int, str],
        prefix: int,
    ) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Args:
            values: With their headers.
            writers: The writers of these values, each once.
            number_of: Which of them each value has; of a null, any.
            headless: Numbers that stand for no writer -> why.
            prefix: Bytes before Avro's.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        programs: list[Program] = []
        numbers = np.full(max(len(writers), 1), -1, np.int64)
        reasons: dict[int, str] = {}
        bare: list[int] = []
        for number, writer in enumerate(writers):
            reason = headless.get(number)
            found = _Writer(reason) if reason else self._writer(writer)
            if isinstance(found.program, str):
                reasons[number] = found.program
            else:
                numbers[number] = len(programs)
                programs.append(found.program)
                if found.has_bare_bytes:
                    bare.append(number)
        if bare:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            values = with_lengths(values, np.isin(number_of, bare) & valid, prefix)
        bad: list[BadValue] = []
        if reasons:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            rows = np.flatnonzero((numbers[number_of] < 0) & valid).tolist()
            bad = [BadValue(row, "", reasons[int(number_of[row])]) for row in rows]
        program_of = np.ascontiguousarray(numbers[number_of])
        texts = [row for row in json_objects(values, prefix) if program_of[row] >= 0]
        if texts:
            program_of[texts] = -1
            bad += [BadValue(row, "", JSON_TEXT) for row in texts]
            bad.sort(key=lambda one: one.row)
        return self._runner.run(values, programs, program_of=program_of, prefix=prefix, bad=bad)

    def _writer(self, writer: K) -> _Writer:
        """Returns the program of a writer, or why there is none."""
        with self._lock:
            found = self._programs.get(writer)
            if found is not None:
                self._programs.move_to_end(writer)
                return found
        try:
            schema = self._writer_schema(writer)
        except (LookupError, AvroSchemaError) as error:
            # The caller knows for how long.
            return _Writer(f"schema {writer}: {_text(error)}")
        try:
            is_bytes = isinstance(schema, Primitive) and schema.kind == BYTES
            found = _Writer(self._runner.compiled(schema), self._bare_bytes and is_bytes)
        except AvroSchemaError as error:
            found = _Writer(f"schema {writer}: {error}")
        with self._lock:
            self._programs[writer] = found
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        return found


def _text(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
