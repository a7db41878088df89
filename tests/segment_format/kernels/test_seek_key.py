"""Compares the kernel's key filter with the readable decoder and a Python set."""

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
from tests.quick import examples
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
SLOW = settings(deadline=None, suppress_health_check=_CHECKS, max_examples=examples(150))
CUTS = st.lists(st.integers(1, 200), max_size=3).map(tuple)
_MASK = (1 << 64) - 1


def kernel_rows(
    stored: bytes,
    keys: Iterable[bytes | None],
    *,
    cut: Sequence[int] = (),
    **options: Any,  # noqa: ANN401
) -> tuple[list[Row], int]:
    """Decodes `stored` with a key filter. Returns the rows with a key in `keys`, and the number of
    records with other keys.
    """
    arguments = {"columns": ALL_COLUMNS, "start_offset": START, **options}
    decoder = RecordDecoder(keys=KeySet.of(keys), **arguments)
    rows = rows_of(decode_pieces(decoder, pieces(stored, cut) if cut else [stored]))
    return rows, decoder.counters.records_skipped_key


def reference_rows(
    stored: bytes,
    keys: Iterable[bytes | None],
    **options: Any,  # noqa: ANN401
) -> tuple[list[Row], int]:
    """Computes both results of `kernel_rows` with the readable decoder and a Python set."""
    rows = expected(stored, **options)
    assert isinstance(rows, list)
    sought = set(keys)
    kept = [row for row in rows if row[0] in sought]
    return kept, len(rows) - len(kept)


def log_of(log: BuiltLog) -> bytes:
    return b"".join(segment.log for segment in log.segments)


@SLOW
@given(st.data(), CUTS, st.integers(1, 5))
def test_key_filter_matches_reference(
    data: st.DataObject, cut: tuple[int, ...], max_rows: int
) -> None:
    some = data.draw(
        st.sampled_from([b"", b"a", b"ab", b"abcd", b"a key of more bytes", b"x" * 70])
    )
    records = strategies.records(contents=st.just(some) | strategies.payloads())
    log = data.draw(strategies.logs(legacy=data.draw(st.booleans()), some=records))
    stored = log_of(log)
    rows = expected(stored)
    assert isinstance(rows, list)
    existing = st.sampled_from([row[0] for row in rows])
    keys = data.draw(st.lists(st.none() | existing | strategies.payloads(), max_size=6))
    options: dict[str, Any] = {}
    if data.draw(st.booleans()):
        first, last = log.segments[0].base_offset, log.segments[-1].next_offset
        options["start_offset"] = data.draw(st.integers(first - 1, last + 1))
        options["stop_offset"] = data.draw(st.integers(first - 1, last + 1))
    assert kernel_rows(stored, keys, cut=cut, max_rows=max_rows, **options) == reference_rows(
        stored, keys, **options
    )


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("columns", [("offset",), ("offset", "timestamp"), ("key", "offset")])
def test_key_filter_matches_reference_for_selected_columns(
    codec: str, columns: tuple[str, ...]
) -> None:
    keys = [None, b"", b"k", b"key", b"longer key", b"longer kez"]
    records = [SimpleRecord(b"v" * 40, key=keys[n % 6], timestamp=n) for n in range(600)]
    stored = write_batch(records, base_offset=5, codec=codec)
    for key in keys:
        names = [ALL_COLUMNS.index(name) for name in columns]
        rows = [tuple(row[index] for index in names) for row in reference_rows(stored, [key])[0]]
        assert kernel_rows(stored, [key], columns=columns, max_rows=7)[0] == rows
        assert len(rows) == 100


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 62, 63, 64, 300])
def test_key_filter_compares_every_byte(size: int) -> None:
    """Searches one key among keys that differ from it in one byte or in length."""
    key = bytes(range(1, size + 1)) if size < 255 else b"k" * size
    others = [
        key[:position] + bytes([key[position] ^ 0x40]) + key[position + 1 :]
        for position in range(size)
    ]
    others += [key + b"\x00", key[:-1], b"\x00" + key]
    records = [SimpleRecord(b"v", key=other) for other in (*others, key, *others)]
    stored = write_batch(records, base_offset=0)
    for keys in ([key], [key, b"none has this"]):
        rows, skipped = kernel_rows(stored, keys)
        assert [row[2] for row in rows] == [len(others)]
        assert skipped == 2 * len(others)


def test_key_filter_of_many_keys_matches_reference() -> None:
    random_ = random.Random(7)
    every = list({random_.randbytes(random_.randint(0, 24)) for _ in range(150_000)})
    sought = every[:100_000]
    records = [SimpleRecord(None, key=key) for key in random_.sample(every, 30_000)]
    stored = b"".join(
        write_batch(records[position : position + 500], base_offset=position)
        for position in range(0, len(records), 500)
    )
    assert kernel_rows(stored, sought) == reference_rows(stored, sought)


def test_key_filter_with_colliding_hashes_compares_keys() -> None:
    """An attacker who knows the seed could choose keys with colliding hashes, so all bytes must be
    compared.
    """
    seed = 12345
    keys = colliding(seed, 50)
    key_set = KeySet.of(keys, seed=seed)
    assert len(set(key_set.tags.tolist())) == 1
    assert max(key_set.borders[1:] - key_set.borders[:-1]) == 50
    strangers = colliding(seed, 100)[50:]
    stored = write_batch(
        [SimpleRecord(None, key=key) for key in (*keys, *strangers)], base_offset=0
    )
    decoder = RecordDecoder(columns=("offset",), keys=key_set)
    rows = rows_of(decode_pieces(decoder, [stored]))
    assert rows == [(number,) for number in range(50)]


def colliding(seed: int, count: int) -> list[bytes]:
    """Returns different keys of 16 bytes that have the same hash for this seed."""
    begun = (seed ^ 16 * MULTIPLIER) & _MASK

    def after(word: int) -> int:
        mixed = (begun ^ word) * MULTIPLIER & _MASK
        return mixed ^ mixed >> 32

    return [
        word.to_bytes(8, "little") + (after(word) ^ 99).to_bytes(8, "little")
        for word in range(count)
    ]


def test_key_filter_without_keys_returns_no_rows() -> None:
    stored = write_batch([SimpleRecord(b"v", key=b"k"), SimpleRecord(b"v")], base_offset=0)
    assert kernel_rows(stored, []) == ([], 2)
    assert [row[2] for row in kernel_rows(stored, [None])[0]] == [1]


@SLOW
@given(st.binary(max_size=80), st.integers(0, 5), st.lists(st.none() | st.binary(max_size=3)))
def test_key_filter_on_random_bytes_matches_reference_or_raises(
    payload: bytes, count: int, keys: list[bytes | None]
) -> None:
    """After a key that is not in the set, the kernel does not read the rest of the record. It
    therefore raises no error if that rest is invalid.
    """
    data = frame_batch(payload, base_offset=7, record_count=count, last_offset_delta=4)
    all_rows = actual(data)
    rows: list[Row] | str
    try:
        rows, _ = kernel_rows(data, keys)
    except SegmentFormatError as error:
        rows = type(error).__name__
    if isinstance(all_rows, list):
        assert rows == [row for row in all_rows if row[0] in keys]
    else:
        assert rows == all_rows or isinstance(rows, list)


def test_key_set_repr_hides_keys_and_pickled_key_set_filters_rows() -> None:
    keys = KeySet.of([b"secret", None, b"secret", b""])
    assert len(keys) == 3
    assert repr(keys) == str(keys) == "KeySet(3 keys)"
    stored = write_batch([SimpleRecord(b"v", key=b"secret")], base_offset=0)
    decoder = RecordDecoder(columns=("key",), keys=pickle.loads(pickle.dumps(keys)))
    assert rows_of(decode_pieces(decoder, [stored])) == [(b"secret",)]
