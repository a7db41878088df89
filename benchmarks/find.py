"""Compares searches for records by key with decoding all records, on one core."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import kts_source
from benchmarks.report import Row, at_least, at_most, best_seconds
from benchmarks.tiers import TOPIC, TierShape, make_tier
from segment_format.arrow import RECORD_COLUMNS, RecordDecoder
from segment_format.key_set import KeySet
from segment_format.testing.tiers import AivenTierWriter
from tests.uniform_batches import uniform_segment, write_uniform_batches

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.uniform_batches import UniformBatches

_VALUE_BYTES: Final = 100
_BATCH_BYTES: Final = 16 << 10
_KEY_BYTES: Final = 8
_KEYS: Final = 200
"""Number of keys in each segment of the tier with key filters."""
_MEGA: Final = 1e6


def run(*, quick: bool) -> list[Row]:
    """Measures searches in memory, by codec and number of keys, and a search of a tier on disk."""
    repeats = 5 if quick else 15
    rows = []
    for codec in ("none", "lz4", "zstd"):
        rows += _in_memory(codec, (8 << 20) if quick else (48 << 20), repeats)
    rows += _on_disk((64 << 20) if quick else (1536 << 20), 3 if quick else 5)
    return rows + _with_filters(300 if quick else 10_000)


def _key(number: int) -> bytes:
    return number.to_bytes(_KEY_BYTES, "big")


def _in_memory(codec: str, total: int, repeats: int) -> list[Row]:
    per_batch = _BATCH_BYTES // (_VALUE_BYTES + 20)
    log = write_uniform_batches(
        batch_count=total // _BATCH_BYTES,
        records_per_batch=per_batch,
        value_size=_VALUE_BYTES,
        key_size=_KEY_BYTES,
        codec=codec,
        payload="json",
    )
    chance = random.Random(1)
    strangers = [chance.randbytes(_KEY_BYTES) for _ in range(1_000_000)]
    sets = {
        "1 key": KeySet.of(strangers[:1]),
        "100 keys": KeySet.of(strangers[:100]),
        "100,000 keys": KeySet.of(strangers[:100_000]),
        "1,000,000 keys": KeySet.of(strangers),
    }
    full, *search_seconds = best_seconds(
        _decoding(log, None), *(_decoding(log, keys) for keys in sets.values()), repeats=repeats
    )
    rows = []
    for name, seconds in zip(sets, search_seconds, strict=True):
        label = f"find {name} that no record has, {_VALUE_BYTES} B, codec {codec}"
        rows.append(Row(label, log.next_offset / seconds / _MEGA, "M records/s"))
        ratio = f"{label}: against decoding all columns"
        if (name, codec) == ("1 key", "none"):  # elsewhere the codec takes most of the time
            rows.append(at_least(ratio, full / seconds, "×", 1.25))
        else:
            rows.append(Row(ratio, full / seconds, "×"))
    return rows


def _decoding(log: UniformBatches, keys: KeySet | None) -> Callable[[], object]:
    def decode() -> None:
        decoder = RecordDecoder(columns=RECORD_COLUMNS, keys=keys)
        for _ in decoder.feed(log.data):
            pass
        for _ in decoder.finish():
            pass
        counters = decoder.counters
        if counters.records + counters.records_skipped_key != log.next_offset:
            raise AssertionError(f"decoded {counters} of {log.next_offset} records")

    return decode


def _on_disk(log_bytes: int, repeats: int) -> list[Row]:
    tier = make_tier(TierShape(_VALUE_BYTES, log_bytes))
    wanted = [_key(tier.records_per_partition // 2)]

    def scan() -> None:
        batches = kts_source.scan(tier.options).batches(threads=1)
        _check(sum(batch.num_rows for batch in batches), tier.records)

    def find() -> None:
        batches = kts_source.find(tier.options, keys=wanted).batches(threads=1)
        _check(sum(batch.num_rows for batch in batches), tier.shape.partitions)

    scanning, searching = best_seconds(scan, find, repeats=repeats, clock=time.process_time)
    label = f"kts_source.find of 1 key, {tier.records / _MEGA:.1f} M records of {_VALUE_BYTES} B"
    return [  # processor time of all threads, because read-ahead may use several
        Row(f"{label}, files of this machine", tier.records / searching / _MEGA, "M records/s"),
        at_least(f"{label}: against kts_source.scan", scanning / searching, "×", 1.25),
    ]


def _with_filters(segments: int) -> list[Row]:
    """Measures a search for some keys in one partition of small segments, with a key index. Each
    key is in only one segment, and about 1 % of the segments contain a searched key.
    """
    with tempfile.TemporaryDirectory(prefix="kts-bench-find-") as scratch:
        root, folder = f"{scratch}/tier", f"{scratch}/index"
        write_segments(root, segments)
        options = {"path": root, "subscribe": TOPIC}
        index = kts_source.index_keys(options, folder)
        total = sum(path.stat().st_size for path in Path(root).rglob("*.log"))
        chance = random.Random(2)
        count = segments // 100
        keys = [_key(number) for number in chance.sample(range(segments * _KEYS), count)]
        search = kts_source.find(options, keys=keys, key_index=folder)
        began = time.perf_counter()
        _check(search.to_table(threads=1).num_rows, count)
        seconds = time.perf_counter() - began
        proof = search.certificate
    label = f"find {count} keys in {segments:,} segments with filters"
    return [
        Row(f"{label}: planning and all", seconds, "s"),
        at_most(f"{label}: share of the bytes", 100 * proof.bytes / total, "%", 1),
        at_most(f"{label}: requests", proof.requests, "", segments / 100 + 3),
        Row(f"{label}: size of the filters", index.bytes / (segments * _KEYS), "B a key"),
    ]


def write_segments(root: str, segments: int) -> None:
    """Writes segments of `_KEYS` records each, with consecutive keys across segments."""
    writer = AivenTierWriter(root, topic=TOPIC)
    for number in range(segments):
        batches = write_uniform_batches(
            batch_count=4,
            records_per_batch=_KEYS // 4,
            value_size=_VALUE_BYTES,
            key_size=_KEY_BYTES,
            base_offset=number * _KEYS,
            seed=number,
        )
        writer.write_segment(uniform_segment(batches, log_start=0))


def _check(rows: int, wanted: int) -> None:
    if rows != wanted:
        raise AssertionError(f"the search returned {rows} rows instead of {wanted}")
