"""Checks that scans with conditions on fields return the same rows as filters in plain Python.

Schemas, values, conditions and the mode for invalid values are random.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.options.value_formats import ColumnFormat, fields_of_formats
from kts_source.predicate.model import Predicate, split_by_fields
from kts_source.predicate.parse import parse_predicate
from kts_source.read.typed_rows import TypedRows
from kts_source.read.value_decoders import value_decoder
from tests.kts_source.predicate.oracle import Row, truth
from tests.kts_source.read.where_values import KINDS, SAMPLES, Writer, record

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMERIC: Final = ("i", "l", "f", "d", "p", "q")
OPS: Final = ("=", "<>", "<", "<=", ">", ">=", "<=>", "IS DISTINCT FROM")
Path = tuple[str, ...]
"""Names of a nested field, from the outermost to the innermost. The first letters of the last name
are the field's kind, see `KINDS`.
"""

ROWS: Final = 40
CONDITIONS: Final = 12


class Generated:
    """Generates a schema, values and conditions from a seed. Hypothesis strategies would generate
    less varied examples.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.schema = self._fields() | {"u": self._fields() | {"w": self._fields()}}
        self._paths = paths_of(self.schema)

    def _fields(self) -> dict[str, Any]:
        names = self._chance.sample(sorted(KINDS), self._chance.randint(1, 6))
        return {name: KINDS[name] for name in names}

    def _of(self, *choices: str) -> str:
        return self._chance.choice(choices)

    def value(self, schema: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Returns a random record of `schema`. The record and each of its fields may be null."""
        if self._chance.random() < 0.15:
            return None
        return {
            name: self.value(kind)
            if is_record(kind)
            else self._chance.choice([*SAMPLES[name], None])
            for name, kind in (self.schema if schema is None else schema).items()
        }

    def bad_rows(self) -> set[int]:
        """Returns the numbers of random rows. The test makes the values of these rows invalid."""
        return {self._chance.randrange(ROWS) for _ in range(self._chance.choice([0, 1, 8]))}

    def mode(self) -> str:
        """Returns a random mode for invalid values."""
        return self._of("permissive", "dropmalformed")

    def condition(self, depth: int = 0) -> str:
        """Returns a random condition inside `depth` levels of AND, OR and NOT."""
        kind = self._chance.randint(0, 9)
        if depth < 3 and kind < 3:
            terms = [self.condition(depth + 1) for _ in range(self._chance.randint(2, 3))]
            return f"({self._of(' AND ', ' OR ').join(terms)})"
        if depth < 3 and kind == 3:
            return f"NOT ({self.condition(depth + 1)})"
        if kind == 4:
            return self._of("offset < 25", "offset > 9", "offset IN (1, 3)", "key = 'k3'")
        return self._leaf()

    def _leaf(self) -> str:
        path = self._chance.choice(self._paths)
        field, kind = ".".join(("value", *path)), path[-1]
        alike = NUMERIC if kind in NUMERIC else ("s", "b") if kind in ("s", "b") else (kind,)
        candidates = [other for other in self._paths if other[-1] in alike]
        op, negated = self._of(*OPS), self._of("", "NOT ")

        def value() -> str:
            chosen = self._of(*alike)
            return literal(chosen, self._chance.choice(SAMPLES[chosen]))

        choice = self._chance.randint(0, 7)
        if choice == 0:
            return f"{field} IS {negated}NULL"
        if choice == 1:
            return f"{field} {op} {'.'.join(('value', *self._chance.choice(candidates)))}"
        if choice == 2:
            listed = [value() for _ in range(self._chance.randint(1, 3))]
            return f"{field} {negated}IN ({', '.join([*listed, self._of('NULL', listed[0])])})"
        if choice == 3:
            return f"{field} {negated}BETWEEN {value()} AND {value()}"
        if choice == 4 and kind == "s":
            return f"{field} LIKE '{self._of('a%', '%b', '_', '%', 'a_', '%a%')}'"
        if choice == 5 and kind == "t":
            return self._of(field, f"{field} IS TRUE", f"{field} IS NOT FALSE")
        if choice == 6:
            return f"{value()} {op} {field}" if op in OPS[:7] else f"{field} {op} NULL"
        return f"{field} {op} {value()}"


def is_record(kind: Any) -> bool:  # noqa: ANN401 - a type of Avro
    return isinstance(kind, dict) and "type" not in kind


def paths_of(schema: dict[str, Any], above: Path = ()) -> list[Path]:
    """Returns the paths of all fields that are not records. Each path begins with `above`."""
    paths: list[Path] = []
    for name, kind in schema.items():
        path = (*above, name)
        paths += paths_of(kind, path) if is_record(kind) else [path]
    return paths


def literal(kind: str, value: Any) -> str:  # noqa: ANN401 - of any kind
    """Returns a value as an SQL literal."""
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
        return f"{value!r}D" if abs(value) < 1e15 else "1e300"  # also for NaN
    return str(value)


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
    """Returns the rows of `batch` that match `where`, filtered with `TypedRows`. Also checks that
    the conditions on fields and the remaining conditions, evaluated one after the other, match
    the same rows.
    """
    plain, of_fields = split_by_fields(where)
    columns = ["offset", "value", *([] if form.error_column is None else [form.error_column])]
    rows = TypedRows(columns, [form], where)
    table = pa.Table.from_batches(
        rows.decoded([batch], None),
        pa.schema(
            [("offset", pa.int64()), ("value", form.type)]
            + [(name, pa.string()) for name in columns[2:]]
        ),
    )
    # The two parts of the condition, evaluated separately, match the same rows.
    halves = [
        TypedRows(["offset"], [form], half) if half is not None else None
        for half in (plain, of_fields)
    ]
    offsets = {*range(batch.num_rows)}
    for half in halves:
        if half is not None:
            conditions = half.decoded([batch], None)
            offsets &= {
                offset for half_rows in conditions for offset in half_rows["offset"].to_pylist()
            }
    assert sorted(offsets) == table["offset"].to_pylist()
    return table


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_generated_conditions_equal_evaluation_in_python(seed: int) -> None:
    generated = Generated(seed)
    writer = Writer(record("R", generated.schema))
    values = [generated.value() for _ in range(ROWS)]
    # The union branch of the first field is invalid, so the value cannot be decoded.
    bad_rows = generated.bad_rows()
    written = [
        b"\x7f" if number in bad_rows else None if value is None else writer(value)
        for number, value in enumerate(values)
    ]
    form = form_of(generated.schema, generated.mode())
    values_by_row = value_decoder(form).decode(pa.array(written, pa.binary())).array.to_pylist()
    batch = batch_of(written)
    for _ in range(CONDITIONS):
        text = generated.condition()
        where = parsed(text, form)
        expected = []
        for number, value in enumerate(values_by_row):
            row: Row = {"value": value, "key": b"k%d" % number, "offset": number}
            dropped = number in bad_rows and form.mode == "dropmalformed"
            if truth(where, row) and not dropped:
                expected.append(number)
        kept_rows = kept(batch, form, where)
        assert kept_rows["offset"].to_pylist() == expected, text
        # NaN does not equal itself, so the texts are compared.
        assert repr(kept_rows["value"].to_pylist()) == repr(
            [values_by_row[number] for number in expected]
        )
        if form.error_column is not None:
            bad = [error is not None for error in kept_rows[form.error_column].to_pylist()]
            assert bad == [number in bad_rows for number in expected]


def test_decimals_and_doubles_compare_exactly() -> None:
    form = form_of({"l": KINDS["l"], "q": KINDS["q"], "d": KINDS["d"]}, "permissive")
    writer = Writer(record("R", {"l": KINDS["l"], "q": KINDS["q"], "d": KINDS["d"]}))
    row = {"l": 2**63 - 1, "q": Decimal("0.100000000000000006"), "d": 0.1}
    batch = batch_of([writer(row)])

    def matches(text: str) -> bool:
        return len(kept(batch, form, parsed(text, form))) == 1

    assert matches("value.l > 9223372036854775806.999999999999999999")
    assert not matches("value.l >= 9223372036854775807.000000000000000001")
    assert matches("value.l = 9223372036854775808D")  # compared as doubles
    assert matches("value.q > 0.1")
    assert matches("value.q = value.d")  # the nearest double to the decimal
    assert not matches("value.q = 0.1")
