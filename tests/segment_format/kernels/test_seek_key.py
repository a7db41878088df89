"""Records of some keys: the kernel gives what the readable decoder gives and a set lets through."""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.arrow import RecordDecoder
from segment_format.errors import SegmentFormatError
from segment_format.key_set import MULTIPLIER, KeySet
from segment_format.testing import SimpleRecord, frame_batch, write_batch
from tests import log_strategies as strategies
from tests.segment_format.kernels.yardstick import (
    ALL_COLUMNS,
    START,
    actual,
    decode_pieces,
    expected,
    pieces,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from segment_format.testing.log_builder import BuiltLog
    from tests.segment_format.kernels.yardstick import Row

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
SLOW = settings(deadline=None, suppress_health_check=_CHECKS, max_examples=150)
CUTS = st.lists(st.integers(1, 200), max_size=3).map(tuple)
_MASK = (1 << 64) - 1


def found(
    stored: bytes,
    keys: Iterable[bytes | None],
    *,
    cut: Sequence[int] = (),
    **options: Any,  # noqa: ANN401
) -> tuple[list[Row], int]:
    """The rows of some keys, and how many records were left out for having another one."""
    arguments = {"columns": ALL_COLUMNS, "start_offset": START, **options}
    decoder = RecordDecoder(keys=KeySet.of(keys), **arguments)
    rows = rows_of(decode_pieces(decoder, pieces(stored, cut) if cut else [stored]))
    return rows, decoder.counters.records_skipped_key


def wanted(
    stored: bytes,
    keys: Iterable[bytes | None],
    **options: Any,  # noqa: ANN401
) -> tuple[list[Row], int]:
    """The same by the readable decoder and Python's own set."""
    rows = expected(stored, **options)
    assert isinstance(rows, list)
    sought = set(keys)
    kept = [row for row in rows if row[0] in sought]
    return kept, len(rows) - len(kept)


def log_of(log: BuiltLog) -> bytes:
    return b"".join(segment.log for segment in log.segments)


@SLOW
@given(st.data(), CUTS, st.integers(1, 5))
def test_any_keys_of_any_log(data: st.DataObject, cut: tuple[int, ...], max_rows: int) -> None:
    some = data.draw(
        st.sampled_from([b"", b"a", b"ab", b"abcd", b"a key of more bytes", b"x" * 70])
    )
    records = strategies.records(contents=st.just(some) | strategies.payloads())
    log = data.draw(strategies.logs(legacy=data.draw(st.booleans()), some=records))
    stored = log_of(log)
    rows = expected(stored)
    assert isinstance(rows, list)
    there = st.sampled_from([row[0] for row in rows])
    keys = data.draw(st.lists(st.none() | there | strategies.payloads(), max_size=6))
    options: dict[str, Any] = {}
    if data.draw(st.booleans()):
        first, last = log.segments[0].base_offset, log.segments[-1].next_offset
        options["start_offset"] = data.draw(st.integers(first - 1, last + 1))
        options["stop_offset"] = data.draw(st.integers(first - 1, last + 1))
    assert found(stored, keys, cut=cut, max_rows=max_rows, **options) == wanted(
        stored, keys, **options
    )


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("columns", [("offset",), ("offset", "timestamp"), ("key", "offset")])
def test_few_columns(codec: str, columns: tuple[str, ...]) -> None:
    keys = [None, b"", b"k", b"key", b"longer key", b"longer kez"]
    records = [SimpleRecord(b"v" * 40, key=keys[n % 6], timestamp=n) for n in range(600)]
    stored = write_batch(records, base_offset=5, codec=codec)
    for key in keys:
        names = [ALL_COLUMNS.index(name) for name in columns]
        rows = [tuple(row[at] for at in names) for row in wanted(stored, [key])[0]]
        assert found(stored, [key], columns=columns, max_rows=7)[0] == rows
        assert len(rows) == 100


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 62, 63, 64, 300])
def test_keys_that_differ_in_one_byte(size: int) -> None:
    """One key by itself, and among others, against all that differ from it in one place."""
    key = bytes(range(1, size + 1)) if size < 255 else b"k" * size
    others = [key[:at] + bytes([key[at] ^ 0x40]) + key[at + 1 :] for at in range(size)]
    others += [key + b"\x00", key[:-1], b"\x00" + key]
    records = [SimpleRecord(b"v", key=other) for other in (*others, key, *others)]
    stored = write_batch(records, base_offset=0)
    for keys in ([key], [key, b"none has this"]):
        rows, skipped = found(stored, keys)
        assert [row[2] for row in rows] == [len(others)]
        assert skipped == 2 * len(others)


def test_a_hundred_thousand_keys() -> None:
    random_ = random.Random(7)
    every = list({random_.randbytes(random_.randint(0, 24)) for _ in range(150_000)})
    sought = every[:100_000]
    records = [SimpleRecord(None, key=key) for key in random_.sample(every, 30_000)]
    stored = b"".join(
        write_batch(records[at : at + 500], base_offset=at) for at in range(0, len(records), 500)
    )
    assert found(stored, sought) == wanted(stored, sought)


def test_keys_of_one_hash() -> None:
    """Whoever knew the seed could choose keys of two words that collide: all bytes are compared."""
    seed = 12345
    keys = colliding(seed, 50)
    one = KeySet.of(keys, seed=seed)
    assert len(set(one.tags.tolist())) == 1
    assert max(one.borders[1:] - one.borders[:-1]) == 50
    strangers = colliding(seed, 100)[50:]
    stored = write_batch(
        [SimpleRecord(None, key=key) for key in (*keys, *strangers)], base_offset=0
    )
    decoder = RecordDecoder(columns=("offset",), keys=one)
    rows = rows_of(decode_pieces(decoder, [stored]))
    assert rows == [(number,) for number in range(50)]


def colliding(seed: int, count: int) -> list[bytes]:
    """Keys of 16 bytes whose second word undoes what the first one did to the hash."""
    begun = (seed ^ 16 * MULTIPLIER) & _MASK

    def after(word: int) -> int:
        mixed = (begun ^ word) * MULTIPLIER & _MASK
        return mixed ^ mixed >> 32

    return [
        word.to_bytes(8, "little") + (after(word) ^ 99).to_bytes(8, "little")
        for word in range(count)
    ]


def test_no_key_at_all() -> None:
    stored = write_batch([SimpleRecord(b"v", key=b"k"), SimpleRecord(b"v")], base_offset=0)
    assert found(stored, []) == ([], 2)
    assert [row[2] for row in found(stored, [None])[0]] == [1]


@SLOW
@given(st.binary(max_size=80), st.integers(0, 5), st.lists(st.none() | st.binary(max_size=3)))
def test_any_bytes_as_records(payload: bytes, count: int, keys: list[bytes | None]) -> None:
    """What is no record is an error, unless only what stands behind another key is wrong."""
    data = frame_batch(payload, base_offset=7, record_count=count, last_offset_delta=4)
    whole = actual(data)
    rows: list[Row] | str
    try:
        rows, _ = found(data, keys)
    except SegmentFormatError as error:
        rows = type(error).__name__
    if isinstance(whole, list):
        assert rows == [row for row in whole if row[0] in keys]
    else:
        assert rows == whole or isinstance(rows, list)


def test_a_set_travels_and_tells_nothing() -> None:
    keys = KeySet.of([b"secret", None, b"secret", b""])
    assert len(keys) == 3
    assert repr(keys) == str(keys) == "KeySet(3 keys)"
    stored = write_batch([SimpleRecord(b"v", key=b"secret")], base_offset=0)
    decoder = RecordDecoder(columns=("key",), keys=pickle.loads(pickle.dumps(keys)))
    assert rows_of(decode_pieces(decoder, [stored])) == [(b"secret",)]
