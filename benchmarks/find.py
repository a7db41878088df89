"""Records of some keys: against decoding all of them, in the same run, on one core."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import kts_source
from benchmarks.log_bytes import LogBytes, make_log
from benchmarks.report import Row, at_least, best_seconds
from benchmarks.tiers import TierShape, make_tier
from segment_format.arrow import RECORD_COLUMNS, RecordDecoder
from segment_format.key_set import KeySet

if TYPE_CHECKING:
    from collections.abc import Callable

_VALUE_BYTES: Final = 100
_BATCH_BYTES: Final = 16 << 10
_KEY_BYTES: Final = 8
_MEGA: Final = 1e6


def run(*, quick: bool) -> list[Row]:
    """In memory, by codec and number of keys; then a tier on disk."""
    repeats = 5 if quick else 15
    rows = []
    for codec in ("none", "lz4", "zstd"):
        rows += _in_memory(codec, (8 << 20) if quick else (48 << 20), repeats)
    return rows + _on_disk((64 << 20) if quick else (1536 << 20), 3 if quick else 5)


def _key(number: int) -> bytes:
    return number.to_bytes(_KEY_BYTES, "big")


def _in_memory(codec: str, total: int, repeats: int) -> list[Row]:
    log = make_log(
        value_bytes=_VALUE_BYTES,
        records_per_batch=_BATCH_BYTES // (_VALUE_BYTES + 10),
        total_bytes=total,
        codec=codec,
        distinct=32,
    )
    chance = random.Random(1)
    strangers = [chance.randbytes(_KEY_BYTES) for _ in range(1_000_000)]
    sets = {
        "1 key": KeySet.of(strangers[:1]),
        "100 keys": KeySet.of(strangers[:100]),
        "100,000 keys": KeySet.of(strangers[:100_000]),
        "1,000,000 keys": KeySet.of(strangers),
    }
    full, *found = best_seconds(
        _decoding(log, None), *(_decoding(log, keys) for keys in sets.values()), repeats=repeats
    )
    rows = []
    for (name, _), seconds in zip(sets.items(), found, strict=True):
        what = f"find {name} that no record has, {_VALUE_BYTES} B, codec {codec}"
        rows.append(Row(what, log.records / seconds / _MEGA, "M records/s"))
        ratio = f"{what}: against decoding all columns"
        if name == "1 key":
            rows.append(at_least(ratio, full / seconds, "×", 1.25))
        else:
            rows.append(Row(ratio, full / seconds, "×"))
    return rows


def _decoding(log: LogBytes, keys: KeySet | None) -> Callable[[], object]:
    def decode() -> None:
        decoder = RecordDecoder(columns=RECORD_COLUMNS, keys=keys)
        rows = sum(batch.num_rows for batch in decoder.feed(log.data))
        rows += sum(batch.num_rows for batch in decoder.finish())
        counters = decoder.counters
        if counters.records + counters.records_skipped_key != log.records:
            raise AssertionError(f"{counters} of {log.records} records")

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

    whole, found = best_seconds(scan, find, repeats=repeats)
    what = f"kts_source.find of 1 key, {tier.records / _MEGA:.1f} M records of {_VALUE_BYTES} B"
    return [
        Row(f"{what}, files of this machine", tier.records / found / _MEGA, "M records/s"),
        at_least(f"{what}: against kts_source.scan", whole / found, "×", 1.25),
    ]


def _check(rows: int, wanted: int) -> None:
    if rows != wanted:
        raise AssertionError(f"{rows} rows, not {wanted}")
