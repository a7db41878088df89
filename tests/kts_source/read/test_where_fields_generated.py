"""Conditions on fields keep the rows that a plain evaluation, row by row, keeps: for generated
schemas, values and conditions, in each mode.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.options.value_fields import fields_of_formats
from kts_source.options.value_formats import ColumnFormat
from kts_source.predicate.model import Predicate, split_by_fields
from kts_source.predicate.parse import parse_predicate
from kts_source.read.typed_rows import TypedRows
from kts_source.read.value_decoders import value_decoder
from tests.kts_source.predicate.oracle import Row, truth
from tests.kts_source.read.where_values import KINDS, SAMPLES, Writer, record

if TYPE_CHECKING:
    from collections.abc import Sequence

MODES: Final = ("permissive", "dropmalformed")
NUMERIC: Final = ("i", "l", "f", "d", "p", "q")
OPS: Final = ("=", "<>", "<", "<=", ">", ">=", "<=>", "IS DISTINCT FROM")
Path = tuple[str, ...]
"""Names of a field; the last one says its kind by its first letters, see `KINDS`."""

_fields = st.dictionaries(
    st.sampled_from(sorted(KINDS)),
    st.none(),
    min_size=1,
    max_size=6,
).map(lambda names: {name: KINDS[name] for name in names})
SCHEMAS: Final = st.builds(
    lambda top, inner, deepest: top | {"u": inner | {"w": deepest}}, _fields, _fields, _fields
)


def paths_of(schema: dict[str, Any], above: Path = ()) -> list[Path]:
    """All fields that are no records."""
    found: list[Path] = []
    for name, kind in schema.items():
        path = (*above, name)
        nested = isinstance(kind, dict) and "type" not in kind
        found += paths_of(kind, path) if nested else [path]
    return found


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Values of a record, each field null at times."""
    fields = {
        name: st.none() | values_of(kind)
        if isinstance(kind, dict) and "type" not in kind
        else st.none() | st.sampled_from(SAMPLES[name])
        for name, kind in schema.items()
    }
    return st.fixed_dictionaries(fields)


def literal(kind: str, value: Any) -> str:  # noqa: ANN401 - of any kind
    """A value as SQL writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, dt.datetime):
        if kind == "loc":
            return f"TIMESTAMP_NTZ '{value}'"
        return f"TIMESTAMP '{value.replace(tzinfo=None)}Z'"
    if isinstance(value, dt.date):
        return f"DATE '{value}'"
    if isinstance(value, float):
        return f"{value!r}D" if abs(value) < 1e15 else "1e300"  # NaN, too
    return str(value)


@st.composite
def conditions(draw: st.DrawFn, paths: Sequence[Path], depth: int = 0) -> str:
    kind = draw(st.integers(0, 9))
    if depth < 3 and kind < 3:
        word = draw(st.sampled_from([" AND ", " OR "]))
        terms = [draw(conditions(paths, depth + 1)) for _ in range(draw(st.integers(2, 3)))]
        return f"({word.join(terms)})"
    if depth < 3 and kind == 3:
        return f"NOT ({draw(conditions(paths, depth + 1))})"
    if kind == 4:
        return draw(st.sampled_from(["offset < 5", "offset > 2", "offset IN (1, 3)", "key = 'k3'"]))
    return draw(leaves(paths))


@st.composite
def leaves(draw: st.DrawFn, paths: Sequence[Path]) -> str:
    path = draw(st.sampled_from(paths))
    field, kind = ".".join(("value", *path)), path[-1]
    alike = NUMERIC if kind in NUMERIC else ("s", "b") if kind in ("s", "b") else (kind,)
    others = [one for one in paths if one[-1] in alike]
    op = draw(st.sampled_from(OPS))

    def value() -> str:
        of = draw(st.sampled_from(alike))
        return literal(of, draw(st.sampled_from(SAMPLES[of])))

    choice = draw(st.integers(0, 7))
    if choice == 0:
        return f"{field} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
    if choice == 1:
        return f"{field} {op} {'.'.join(('value', *draw(st.sampled_from(others))))}"
    if choice == 2:
        listed = [value() for _ in range(draw(st.integers(1, 3)))]
        listed += ["NULL"] if draw(st.booleans()) else []
        return f"{field} {draw(st.sampled_from(['', 'NOT ']))}IN ({', '.join(listed)})"
    if choice == 3:
        return f"{field} BETWEEN {value()} AND {value()}"
    if choice == 4 and kind == "s":
        pattern = draw(st.sampled_from(["a%", "%b", "_", "%", "a_", "%a%"]))
        return f"{field} LIKE '{pattern}'"
    if choice == 5 and kind == "t":
        return draw(st.sampled_from([field, f"{field} IS TRUE", f"{field} IS NOT FALSE"]))
    if choice == 6:
        return f"{value()} {op} {field}" if op in OPS[:7] else f"{field} {op} NULL"
    return f"{field} {op} {value()}"


def form_of(schema: dict[str, Any], mode: str) -> ColumnFormat:
    return ColumnFormat("value", "avro", mode, schema=json.dumps(record("R", schema)))


def parsed(text: str, form: ColumnFormat) -> Predicate:
    return parse_predicate(text, dt.UTC, fields=fields_of_formats([form]))


def batch_of(values: Sequence[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        {
            "key": pa.array([b"k%d" % number for number in range(count)], pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
        }
    )


def kept(batch: pa.RecordBatch, form: ColumnFormat, where: Predicate) -> pa.Table:
    """By the way of tasks; the columns are what a task would be asked for."""
    plain, of_fields = split_by_fields(where)
    columns = ["offset", "value", *([] if form.error_column is None else [form.error_column])]
    rows = TypedRows(columns, [form], where)
    found = pa.Table.from_batches(
        rows.decoded([batch], None),
        pa.schema(
            [("offset", pa.int64()), ("value", form.type)]
            + [(name, pa.string()) for name in columns[2:]]
        ),
    )
    # Both halves together are the whole.
    halves = [
        TypedRows(["offset"], [form], half) if half is not None else None
        for half in (plain, of_fields)
    ]
    offsets = {*range(batch.num_rows)}
    for half in halves:
        if half is not None:
            parts = half.decoded([batch], None)
            offsets &= {one for part in parts for one in part["offset"].to_pylist()}
    assert sorted(offsets) == found["offset"].to_pylist()
    return found


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_generated_conditions(data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS)
    values = data.draw(st.lists(st.none() | values_of(schema), min_size=1, max_size=8))
    writer = Writer(record("R", schema))
    written = [None if one is None else writer(one) for one in values]
    spoiled = data.draw(st.sets(st.integers(0, len(values) - 1), max_size=2))
    form = form_of(schema, data.draw(st.sampled_from(MODES)))
    for number in spoiled:
        # No branch of any union: the first field of all cannot be read, and so nothing can.
        written[number] = b"\x7f"
    whole = value_decoder(form).decode(pa.array(written, pa.binary())).array.to_pylist()
    batch = batch_of(written)
    text = data.draw(conditions(paths_of(schema)))
    where = parsed(text, form)
    expected = []
    for number, value in enumerate(whole):
        row: Row = {"value": value, "key": b"k%d" % number, "offset": number}
        dropped = number in spoiled and form.mode == "dropmalformed"
        if truth(where, row) and not dropped:
            expected.append(number)
    found = kept(batch, form, where)
    assert found["offset"].to_pylist() == expected, text
    # NaN is not itself in Python.
    assert repr(found["value"].to_pylist()) == repr([whole[number] for number in expected])
    if form.error_column is not None:
        bad = [one is not None for one in found[form.error_column].to_pylist()]
        assert bad == [number in spoiled for number in expected]


def test_decimals_and_doubles_are_compared_exactly() -> None:
    form = form_of({"l": KINDS["l"], "q": KINDS["q"], "d": KINDS["d"]}, "permissive")
    writer = Writer(record("R", {"l": KINDS["l"], "q": KINDS["q"], "d": KINDS["d"]}))
    row = {"l": 2**63 - 1, "q": Decimal("0.100000000000000006"), "d": 0.1}
    batch = batch_of([writer(row)])

    def holds(text: str) -> bool:
        return len(kept(batch, form, parsed(text, form))) == 1

    assert holds("value.l > 9223372036854775806.999999999999999999")
    assert not holds("value.l >= 9223372036854775807.000000000000000001")
    assert holds("value.l = 9223372036854775808D")  # as doubles
    assert holds("value.q > 0.1")
    assert holds("value.q = value.d")  # the nearest double
    assert not holds("value.q = 0.1")
