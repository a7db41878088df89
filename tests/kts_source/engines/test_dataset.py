"""Checks that `Scan.to_dataset()` returns the same results as an in-memory pyarrow dataset of the
same rows, or raises an error.
"""

from __future__ import annotations

import json
import pickle
import random
import signal
import subprocess
import sys
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import kts_source
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from collections.abc import Callable

STARTED: Final = 1_700_000_000_000
NAMES: Final = {
    "whole": "bigint",
    "small": "int",
    "x)) and (offset == 3) and ((y": "bigint",
    "a.b": "string",
    'q"u\\o"te': "string",
    "offset": "bigint",
    "exact": "decimal(10,2)",
    "double": "double",
    "yes": "boolean",
    "day": "date",
    "at": "timestamp",
    "raw": "binary",
}
TEXTS: Final = ("a", "b", 'a" and (offset == 3) and "', "6162", "é", "")


def _value(dice: random.Random) -> bytes | None:
    if dice.random() < 0.1:
        return None
    values: dict[str, Any] = {}
    for name, kind in NAMES.items():
        choice = dice.randrange(5)
        texts = {
            "string": TEXTS[choice],
            "decimal(10,2)": choice - 1.25,
            "double": choice - 0.5,
            "boolean": choice > 2,
            "date": f"1970-01-0{choice + 1}",
            "timestamp": f"2023-11-14T22:13:2{choice}Z",
            "binary": ("YWI=", "", "YQ==", "Yg==", "/w==")[choice],
        }
        if dice.random() > 0.15:
            values[name] = texts.get(kind, choice)
    return json.dumps(values).encode()


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> kts_source.Scan:
    path = tmp_path_factory.mktemp("tier")
    dice = random.Random(3)
    for partition in range(2):
        writer = AivenTierWriter(
            str(path), topic="orders", partition=partition, topic_id="K9smgFCbQqqHK_5pkCGYjg"
        )
        log = LogBuilder()
        for _ in range(3):
            log.append(
                [
                    SimpleRecord(_value(dice), b"k%d" % row, timestamp=STARTED + 1000 * row)
                    for row in range(12)
                ]
            )
            segment = log.roll()
            assert segment is not None
            writer.write_segment(segment)
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in NAMES.items())
    options = {"value.format": "json", "value.schema": ddl, "targetPartitionBytes": "1k"}
    return kts_source.scan({"path": str(path), "subscribe": "orders", **options})


@pytest.fixture(scope="module")
def all_rows(scan: kts_source.Scan) -> pa.Table:
    return scan.to_table()


FIELDS: Final = (
    *((name,) for name in ("offset", "partition", "timestamp", "topic", "key")),
    *(("value", name) for name in NAMES),
)


def _literal(dice: random.Random) -> pa.Scalar:
    number = dice.choice((0, 1, 2, 3, 30, -1, 127, 2**31, 2**62))
    seconds = 1_700_000_000 + dice.randrange(12)
    text = dice.choice(TEXTS)
    kind = dice.randrange(12)
    if kind < 3:
        type = dice.choice((pa.int64(), pa.int64(), pa.int32(), pa.int8(), pa.uint8(), pa.uint64()))
        return pa.scalar(number if number in (0, 1, 2, 3, 30) else 5, type)
    if kind == 3:
        return pa.scalar(number, pa.int64())
    if kind == 4:
        unit, factor = dice.choice((("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)))
        zone = dice.choice(("UTC", "UTC", "+00:00", "Asia/Tokyo", None))
        return pa.scalar(seconds * factor, pa.timestamp(unit, zone))
    return dice.choice(
        (
            pa.scalar(text),
            pa.scalar(text, pa.large_string()),
            pa.scalar(text.encode()),
            pa.scalar(b"orders"),
            pa.scalar("orders"),
            pa.scalar(Decimal("1.25")),
            pa.scalar(1.5),
            pa.scalar(True),
            pa.scalar(number % 5, pa.date32()),
            pa.scalar(None, dice.choice((pa.int64(), pa.string(), pa.null()))),
            pa.array([text]).dictionary_encode()[0],
        )
    )


def _term(dice: random.Random) -> pc.Expression:
    names = dice.choice(FIELDS)
    field = pc.field(*names) if len(names) > 1 else pc.field(names[0])
    if dice.random() < 0.1:
        field = pc.field(dice.randrange(7))
    match dice.randrange(10):
        case 0:
            return field.is_null()
        case 1:
            return field.isin([_literal(dice).as_py()])
        case 2:
            other = dice.choice(FIELDS)
            return field == (pc.field(*other) if len(other) > 1 else pc.field(other[0]))
        case 3:
            return pc.scalar(dice.choice((True, False, None))).cast(pa.bool_())
    compare: Callable[[Any, Any], pc.Expression] = dice.choice(
        (pc.equal, pc.not_equal, pc.less, pc.less_equal, pc.greater, pc.greater_equal)
    )
    literal = pc.scalar(_literal(dice))
    return compare(literal, field) if dice.random() < 0.3 else compare(field, literal)


def _condition(dice: random.Random, depth: int = 2) -> pc.Expression:
    if depth == 0 or dice.random() < 0.3:
        return _term(dice)
    left, right = _condition(dice, depth - 1), _condition(dice, depth - 1)
    return dice.choice((left & right, left & right, left | right, ~left))


def _outcome(read: Callable[[], pa.Table]) -> pa.Table | type[Exception]:
    try:
        return read()
    except (pa.ArrowException, TypeError, ValueError) as error:
        return type(error)


def test_random_conditions_return_same_rows_as_an_in_memory_dataset(
    scan: kts_source.Scan, all_rows: pa.Table
) -> None:
    dice = random.Random(11)
    tier, memory = scan.to_dataset(), ds.dataset(all_rows)
    rows = errors = 0
    for _ in range(250):
        try:
            condition = _condition(dice)
        except (TypeError, pa.ArrowException):  # pyarrow refuses the expression
            continue
        columns = dice.choice((None, ["offset"], ["topic", "value"], {"n": pc.field("offset") + 1}))
        expected = _outcome(partial(memory.to_table, columns=columns, filter=condition))
        result = _outcome(partial(tier.to_table, columns=columns, filter=condition))
        if isinstance(expected, pa.Table):
            assert isinstance(result, pa.Table), (condition, result)
            assert result.equals(expected), condition
            rows += expected.num_rows
        else:
            assert result is expected, (condition, result)
            errors += 1
    assert rows > 500
    assert 0 < errors < 200


def test_bytes_literal_is_not_translated_as_text(scan: kts_source.Scan, all_rows: pa.Table) -> None:
    for condition, expected in (
        (pc.field("topic") == b"orders", all_rows.num_rows),
        (pc.field("topic") == b"order", 0),
        (pc.field("value", "a.b") == b"ab", 0),
    ):
        assert scan.to_dataset().to_table(filter=condition).num_rows == expected


RIGHT: Final = ds.dataset(
    pa.table(
        {
            "partition": pa.array([0], pa.int32()),
            "then": pa.array([STARTED * 1000], pa.timestamp("us", "UTC")),
            "n": [7],
        }
    )
)
METHODS: dict[str, Callable[[Any], Any]] = {
    "count_rows": lambda tier: tier.count_rows(filter=pc.field("offset") > 20),
    "filter": lambda tier: (
        tier.filter(pc.field("offset") > 20).filter(~(pc.field(4) > 30)).to_table()
    ),
    "get_fragments": lambda tier: pa.concat_tables(
        fragment.to_table() for fragment in tier.get_fragments()
    ),
    "head": lambda tier: tier.head(5, columns=["offset", "key"], filter=pc.field("partition") == 1),
    "join": lambda tier: (
        tier.join(RIGHT, "partition")
        .sort_by([("offset", "ascending"), ("partition", "ascending")])
        .to_table()
    ),
    "join_asof": lambda tier: (
        tier.sort_by("timestamp")
        .join_asof(RIGHT, "timestamp", "partition", -(10**9), right_on="then", right_by="partition")
        .sort_by([("offset", "ascending"), ("partition", "ascending")])  # equal times: any order
        .to_table()
    ),
    "partition_expression": lambda tier: str(tier.partition_expression),
    "replace_schema": lambda tier: tier.replace_schema(tier.schema).to_table(),
    "scanner": lambda tier: tier.scanner(
        columns={"n": pc.field("offset") * 2}, batch_size=5
    ).to_table(),
    "schema": lambda tier: tier.schema,
    "sort_by": lambda tier: tier.sort_by(
        [("offset", "descending"), ("partition", "ascending")]
    ).to_table(),
    "take": lambda tier: tier.take([3, 0], columns=["offset"]),
    "to_batches": lambda tier: pa.Table.from_batches(
        tier.to_batches(columns=["offset"], use_threads=False)
    ),
    "to_table": lambda tier: tier.to_table(columns=["value", "offset"]),
}


def test_every_method_of_dataset_is_tested() -> None:
    assert METHODS.keys() == {name for name in dir(ds.Dataset) if not name.startswith("_")}


@pytest.mark.parametrize("name", METHODS)
def test_dataset_method_returns_the_same_as_an_in_memory_dataset(
    name: str, scan: kts_source.Scan, all_rows: pa.Table
) -> None:
    if name.startswith("join"):  # pyarrow cannot join tables with structs
        names = ["offset", "partition", "timestamp", "key"]
        all_rows, scan = all_rows.select(names), scan.select(names)
    expected, result = METHODS[name](ds.dataset(all_rows)), METHODS[name](scan.to_dataset())
    assert result.equals(expected) if isinstance(expected, pa.Table) else result == expected


SCANNER: dict[str, Callable[[Any], Any]] = {
    "count_rows": lambda scanner: scanner.count_rows(),
    "dataset_schema": lambda scanner: scanner.dataset_schema,
    "head": lambda scanner: scanner.head(7),
    "projected_schema": lambda scanner: scanner.projected_schema,
    "scan_batches": lambda scanner: pa.Table.from_batches(
        [tagged.record_batch for tagged in scanner.scan_batches()], scanner.projected_schema
    ),
    "take": lambda scanner: scanner.take([1, 4]),
    "to_batches": lambda scanner: pa.Table.from_batches(scanner.to_batches()),
    "to_reader": lambda scanner: scanner.to_reader().read_all(),
    "to_table": lambda scanner: scanner.to_table(),
}


@pytest.mark.parametrize("name", SCANNER)
def test_scanner_methods_return_the_same_as_for_an_in_memory_dataset(
    name: str, scan: kts_source.Scan, all_rows: pa.Table
) -> None:
    arguments: dict[str, Any] = {
        "columns": ["offset", "key"],
        "filter": pc.field("value", "whole") > 1,
    }
    expected = SCANNER[name](ds.dataset(all_rows).scanner(**arguments))
    result = SCANNER[name](scan.to_dataset().scanner(**arguments))
    assert result.equals(expected) if isinstance(expected, pa.Table) else result == expected


REFUSED: dict[str, Callable[[ds.Dataset, Path], object]] = {
    "union": lambda tier, _: ds.dataset([tier, tier]).to_table(),
    "union head": lambda tier, _: ds.dataset([tier]).head(3),
    "scanner": lambda tier, _: ds.Scanner.from_dataset(tier).to_table(),
    "count": lambda tier, _: ds.Scanner.from_dataset(tier).count_rows(),
    "write": lambda tier, path: ds.write_dataset(tier, str(path), format="parquet"),
    "join of another dataset": lambda tier, _: RIGHT.join(tier, "partition"),
    "other schema": lambda tier, _: tier.replace_schema(pa.schema([("offset", pa.string())])),
    "unknown argument": lambda tier, _: tier.to_table(column=["offset"]),
    "unknown column": lambda tier, _: tier.to_table(columns=["ofset"]),
    "no condition": lambda tier, _: tier.to_table(filter=pc.field("offset") + 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_or_invalid_dataset_calls_raise(
    name: str, scan: kts_source.Scan, tmp_path: Path
) -> None:
    plain = scan.select(["offset", "partition"]).to_dataset()
    with pytest.raises((TypeError, ValueError, NotImplementedError, pa.ArrowException)) as raised:
        REFUSED[name](plain, tmp_path)
    if name.partition(" ")[0] in ("union", "scanner", "count", "join"):
        assert "Scan.to_reader()" in str(raised.value)


def test_dataset_can_be_pickled(scan: kts_source.Scan, all_rows: pa.Table) -> None:
    condition = pc.field("offset") > 20
    restored = pickle.loads(pickle.dumps(scan.to_dataset().filter(condition)))
    assert restored.to_table().equals(all_rows.filter(condition))


CHILD: Final = """
import sys, duckdb, kts_source, pyarrow.compute as pc
scenario, path = sys.argv[1:]
scan = kts_source.scan({"path": path, "subscribe": "orders", "targetPartitionBytes": "1k"})
tier = scan.to_dataset()
if scenario == "head":
    assert tier.head(3).num_rows == 3
if scenario == "break":
    for batch in tier.to_batches():
        break
if scenario == "kept generator":
    kept = tier.to_batches()
    next(kept)
if scenario == "kept reader":
    kept = tier.scanner(filter=pc.field("offset") > 1).to_reader()
    kept.read_next_batch()
if scenario == "limit":
    assert len(duckdb.sql('select "offset" from tier limit 3').fetchall()) == 3
if scenario == "fetchone":
    kept = duckdb.connect()
    kept.register("kept_tier", tier)
    kept.execute('select "offset" from kept_tier where "offset" > 1').fetchone()
if scenario == "error in the query":
    try:
        duckdb.sql("select error(key::varchar) from tier").fetchall()
    except duckdb.Error:
        pass
if scenario == "uncaught error":
    duckdb.sql("select error(key::varchar) from tier").fetchall()
if scenario == "interrupt":
    import os, signal
    def rows():
        for batch in tier.to_batches():
            yield batch
            os.kill(os.getpid(), signal.SIGINT)
    for batch in rows():
        pass
print("END", flush=True)
"""


@pytest.mark.parametrize(
    ("scenario", "code"),
    [
        ("head", 0),
        pytest.param("break", 0, marks=pytest.mark.slow),
        pytest.param("kept generator", 0, marks=pytest.mark.slow),
        ("kept reader", 0),
        ("limit", 0),
        pytest.param("fetchone", 0, marks=pytest.mark.slow),
        ("error in the query", 0),
        pytest.param("uncaught error", 1, marks=pytest.mark.slow),
        pytest.param("interrupt", -signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_process_exits_after_a_query_that_was_stopped_early(
    scenario: str, code: int, scan: kts_source.Scan
) -> None:
    path = scan._options.path
    run = subprocess.run(
        [sys.executable, "-c", CHILD, scenario, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert run.returncode == code, run.stderr
    assert ("END" in run.stdout) == (code == 0)
