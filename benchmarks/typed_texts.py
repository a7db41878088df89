"""Measures how fast one core decodes JSON and Protobuf values to Arrow.

Compares JSON with pyarrow.json and the same schema. Every ratio compares figures of the same run.
"""

from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.json as paj
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.report import Row, at_least, best_seconds
from segment_format.values.json.ddl import parse_ddl
from segment_format.values.json.decoder import JsonDecoder
from segment_format.values.json.program import projected
from segment_format.values.protobuf.decoder import ProtobufDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.values.decoded import ValueDecoder

_MEGA: Final = 1e6
_BATCH: Final = 8192
"""Rows per batch in Spark."""
DDL: Final = (
    "id string, country string, city string, status string, user bigint, time bigint,"
    " amount double, tax double, paid boolean, note string"
)
_PROTOBUF: Final = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    pa.string(): _PROTOBUF.TYPE_STRING,
    pa.int64(): _PROTOBUF.TYPE_INT64,
    pa.float64(): _PROTOBUF.TYPE_DOUBLE,
    pa.bool_(): _PROTOBUF.TYPE_BOOL,
}


def run(orders: Sequence[dict[str, Any]], two: Sequence[str], *, repeats: int) -> list[Row]:
    """Measures flat orders of ten fields, and two of these fields."""
    texts = [json.dumps(order).encode() for order in orders]
    file, messages = _messages(orders)
    of_all = ProtobufDecoder(file, "b.Order")
    return [
        *_json("JSON, ten of ten fields", texts, None, repeats),
        *_json("JSON, two of ten fields", texts, two, repeats),
        *_rate("Protobuf, ten of ten fields", of_all, messages, repeats, least=4),
    ]


def _json(
    name: str, texts: Sequence[bytes], columns: Sequence[str] | None, repeats: int
) -> list[Row]:
    kind = parse_ddl(DDL)
    decoder = JsonDecoder(kind, columns)
    wanted = kind if columns is None else projected(kind, columns)
    batches = _batches(texts)
    lines = [b"\n".join(batch.to_pylist()) for batch in batches]
    parsing = paj.ParseOptions(
        explicit_schema=pa.schema(wanted), unexpected_field_behavior="ignore"
    )
    reading = paj.ReadOptions(use_threads=False, block_size=1 << 24)

    def ours() -> list[pa.Array]:
        return [decoder.decode(batch).array for batch in batches]

    def theirs() -> list[pa.Table]:
        return [paj.read_json(io.BytesIO(text), reading, parsing) for text in lines]

    if pa.chunked_array(ours()).to_pylist() != pa.concat_tables(theirs()).to_pylist():
        raise AssertionError(f"{name}: this library and pyarrow return different rows")
    # pyarrow.json reads ahead in its own thread.
    mine, other = best_seconds(ours, theirs, repeats=repeats, clock=time.process_time)
    size = sum(map(len, texts)) / len(texts)
    rate = Row(f"{name} → Arrow", len(texts) / mine / _MEGA, "M records/s")
    ratio = at_least(f"{name}, against pyarrow.json", other / mine, "×", 3)
    return [rate.noted(f"{size:.0f} B each"), ratio]


def _rate(
    name: str, decoder: ValueDecoder, values: Sequence[bytes], repeats: int, *, least: float
) -> list[Row]:
    batches = _batches(values)

    def ours() -> list[pa.Array]:
        return [decoder.decode(batch).array for batch in batches]

    (mine,) = best_seconds(ours, repeats=repeats)
    rate = len(values) / mine / _MEGA
    size = sum(map(len, values)) / len(values)
    return [at_least(f"{name} → Arrow", rate, "M records/s", least).noted(f"{size:.0f} B each")]


def _batches(values: Sequence[bytes]) -> list[pa.Array]:
    return [
        pa.array(values[start : start + _BATCH], pa.binary())
        for start in range(0, len(values), _BATCH)
    ]


def _messages(orders: Sequence[dict[str, Any]]) -> tuple[bytes, list[bytes]]:
    """Returns a descriptor set of the orders' message, and the orders, encoded by Google's
    library.
    """
    file = descriptor_pb2.FileDescriptorProto(name="b.proto", package="b", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, field in enumerate(parse_ddl(DDL), 1):
        made = message.field.add(
            name=field.name, number=number, type=_TYPES[field.type], label=_PROTOBUF.LABEL_OPTIONAL
        )
        if field.name == "note":
            made.proto3_optional = True
            made.oneof_index = 0
            message.oneof_decl.add(name="_note")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("b.Order"))
    written = [order_class(**order).SerializeToString() for order in orders]
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), written
