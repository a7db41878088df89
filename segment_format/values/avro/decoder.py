"""Decoders of Avro values: of one writer's schema, or of many that headers name."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from segment_format.values.avro.columns import projected
from segment_format.values.avro.runner import Runner
from segment_format.values.avro.schema import BYTES, AvroSchemaError, Primitive
from segment_format.values.decoded import BadValue, DecodedValues
from segment_format.values.registry_framing import JSON_TEXT, insert_avro_lengths, value_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from segment_format.values.avro.program import Program
    from segment_format.values.avro.schema import Schema
    from segment_format.values.registry_framing import Framing

MAX_PROGRAMS: Final = 1000
"""Writers that are remembered, least recently used first out."""


class AvroDecoder:
    """Decodes values that follow one writer's schema.

    Fields of the writer that are not wanted are skipped: lengths, counts and branches are checked,
    content (UTF-8, the range of an int, an enum's symbol) is not.

    Args:
        reader: Schema of the result.
        writer: Schema of the values; the reader's by default.
        columns: Names of fields, joined by dots, to decode. All by default.

    Raises:
        AvroSchemaError: The schemas do not resolve, or a column does not exist.
    """

    def __init__(
        self, reader: Schema, writer: Schema | None = None, *, columns: Sequence[str] | None = None
    ) -> None:
        self._runner = Runner(reader if columns is None else projected(reader, columns))
        self._program = self._runner.compiled(reader if writer is None else writer)

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._runner.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        texts = json_objects(values)
        program_of = None
        if texts:
            program_of = np.zeros(len(values), np.int64)
            program_of[texts] = -1
        bad = [BadValue(row, "", JSON_TEXT) for row in texts]
        return self._runner.run(values, (self._program,), program_of=program_of, bad=bad)


class _Writer(NamedTuple):
    """A writer's schema, prepared for decoding.

    Attributes:
        program: The program, or the reason why it cannot be compiled.
        has_bare_bytes: True if its values are bytes without their length.
    """

    program: Program | str
    has_bare_bytes: bool = False


class FramedAvroDecoder:
    """Decodes values that each name their writer's schema in a header.

    Each row is decoded by the program of its writer, so rows stay in order.

    Args:
        reader: Schema of the result.
        writer_schema: Returns the schema of an id, GUID or UUID. If it raises LookupError or
            AvroSchemaError, the values of that id are bad, with the error's text as reason, and the
            next batch calls it again. Other errors propagate through `decode`.
        framing: Format of the header.
        columns: Names of fields, joined by dots, to decode. All by default.

    Raises:
        AvroSchemaError: A column does not exist.
    """

    def __init__(
        self,
        reader: Schema,
        writer_schema: Callable[[Any], Schema],
        framing: Framing,
        *,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._runner = Runner(reader if columns is None else projected(reader, columns))
        self._writer_schema = writer_schema
        self._framing = framing
        self._writers: OrderedDict[int | str, _Writer] = OrderedDict()
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
        if values.type != pa.binary():
            raise TypeError(f"values are {values.type}, not binary")
        values, prefix, schemas, schema_of, invalid = self._framing.read(values)
        programs: list[Program] = []
        program_of_schema = np.full(max(len(schemas), 1), -1, np.int64)
        reasons: dict[int, str] = {}
        bare_bytes: list[int] = []
        for index, schema in enumerate(schemas):
            reason = invalid.get(index)
            writer = _Writer(reason) if reason else self._writer(schema)
            if isinstance(writer.program, str):
                reasons[index] = writer.program
            else:
                program_of_schema[index] = len(programs)
                programs.append(writer.program)
                if writer.has_bare_bytes:
                    bare_bytes.append(index)
        if bare_bytes:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            values = insert_avro_lengths(values, np.isin(schema_of, bare_bytes) & valid, prefix)
        bad: list[BadValue] = []
        if reasons:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            rows = np.flatnonzero((program_of_schema[schema_of] < 0) & valid).tolist()
            bad = [BadValue(row, "", reasons[int(schema_of[row])]) for row in rows]
        program_of = np.ascontiguousarray(program_of_schema[schema_of])
        texts = [row for row in json_objects(values, prefix) if program_of[row] >= 0]
        if texts:
            program_of[texts] = -1
            bad += [BadValue(row, "", JSON_TEXT) for row in texts]
            bad.sort(key=lambda value: value.row)
        return self._runner.run(values, programs, program_of=program_of, prefix=prefix, bad=bad)

    def _writer(self, schema_id: int | str) -> _Writer:
        with self._lock:
            writer = self._writers.get(schema_id)
            if writer is not None:
                self._writers.move_to_end(schema_id)
                return writer
        try:
            schema = self._writer_schema(schema_id)
        except (LookupError, AvroSchemaError) as error:
            # Not remembered: the caller decides for how long a schema counts as missing.
            text = str(error.args[0]) if error.args else type(error).__name__
            return _Writer(f"schema {schema_id}: {text}")
        try:
            is_bytes = isinstance(schema, Primitive) and schema.kind == BYTES
            bare_bytes = self._framing.has_bare_bytes and is_bytes
            writer = _Writer(self._runner.compiled(schema), bare_bytes)
        except AvroSchemaError as error:
            writer = _Writer(f"schema {schema_id}: {error}")
        with self._lock:
            self._writers[schema_id] = writer
            if len(self._writers) > MAX_PROGRAMS:
                self._writers.popitem(last=False)
        return writer


def json_objects(values: pa.Array, prefix: int = 0) -> list[int]:
    """Returns the rows with JSON objects that have members as values, in ascending order.

    Some serializers, such as Apicurio's, can write Avro's JSON encoding, and no header says so.
    Decoded as binary, the text of an object may even become a record of other values:
    `{"n":1,"s":"hello"}` is a long of -62 and a string of 17 bytes. In turn, a binary value of at
    least seven bytes that starts with the number -62 and is valid JSON counts as JSON.

    Args:
        values: Possibly a slice, with nulls. Types other than `pa.binary()` have no such rows.
        prefix: Bytes to skip in front of each value.
    """
    if values.type != pa.binary():
        return []
    _, ends, data = values.buffers()
    if ends is None or data is None or not data.size or not ends.size:
        return []
    bounds = value_bounds(values)
    content = np.frombuffer(data, np.uint8)
    first = np.minimum(bounds[:-1] + prefix, len(content) - 1)
    rows = np.flatnonzero(content[first] == ord("{"))
    if not len(rows):
        return []
    rows = rows[bounds[rows + 1] - bounds[rows] >= prefix + 2]
    rows = rows[content[bounds[rows + 1] - 1] == ord("}")]
    candidates = ((row, values[row].as_py()) for row in rows.tolist())
    return [
        row for row, value in candidates if value is not None and is_json_object(value[prefix:])
    ]


def is_json_object(value: bytes) -> bool:
    """Returns whether a value is the text of a JSON object with members.

    This is the readable form of `json_objects`.
    """
    if value[:1] != b"{" or value[-1:] != b"}":
        return False
    try:
        return bool(json.loads(value.decode()))  # without members, `{}` is also two numbers
    except (ValueError, RecursionError):
        return False
