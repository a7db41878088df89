"""Checks searches with a key index, which contains a filter of key hashes for each segment. A
search skips a segment only if it contains none of the keys.
"""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kts_source
from kts_source.cli.app import main
from kts_source.errors import InvalidOptionError
from kts_source.finding.key_index import SALT_SIZE, KeyFilter, hashes_of
from segment_format.testing import LogBuilder, SimpleRecord
from tests.golden_data import TOPICS, expected_table, rows, tier_options
from tests.kts_source.auditing.damaged_tier import TOPIC, write_tier

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kts_source.auditing.damaged_tier import DamagedTier

SECRET = b"a secret of the user's"
SALT = bytes(SALT_SIZE)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(0, 2**64 - 1))
def test_key_filter_contains_all_added_hashes(numbers: list[int], other: int) -> None:
    hashes = np.array(numbers, np.uint64)
    key_filter = KeyFilter.of(hashes)
    restored = KeyFilter.from_bytes(key_filter.to_bytes(), key_filter.bits)
    for added in hashes:
        assert restored.may_hold(np.array([added], np.uint64))
    assert restored.may_hold(np.array([*numbers, other], np.uint64)) or not numbers
    assert not restored.may_hold(np.empty(0, np.uint64))


def test_key_filter_has_few_false_positives() -> None:
    chance = np.random.default_rng(5)
    hashes = chance.integers(0, 2**64, 400_000, np.uint64, endpoint=False)
    key_filter = KeyFilter.of(hashes)
    assert len(key_filter.to_bytes()) < 4.2 * len(hashes)
    for start in range(0, len(hashes), 4_000):
        buckets = hashes[start : start + 1]
        assert key_filter.may_hold(buckets)
    others = chance.integers(0, 2**64, 300_000, np.uint64, endpoint=False)
    false_positives = sum(
        key_filter.may_hold(others[start : start + 100]) for start in range(0, len(others), 100)
    )
    assert false_positives <= 1


def test_key_hashes_depend_on_secret_and_salt() -> None:
    keys = [b"a", b"b", b""]
    hashes = hashes_of(keys, salt=SALT, secret=SECRET)
    assert len(set(hashes.tolist())) == 3
    assert (hashes == hashes_of(keys, salt=SALT, secret=SECRET)).all()
    assert not (hashes == hashes_of(keys, salt=SALT, secret=SECRET + b"x")).any()
    assert not (hashes == hashes_of(keys, salt=b"x" * SALT_SIZE, secret=SECRET)).any()


def run_search(
    options: dict[str, str],
    folder: Path | None,
    keys: Any,  # noqa: ANN401
    **arguments: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    if folder is not None:
        arguments = {"key_index": str(folder), **arguments}
    columns = {"columns": "partition,offset,key"}
    search = kts_source.find({**options, **columns}, keys=keys, **arguments)
    return rows(search.to_table()), search.certificate


@pytest.mark.parametrize("topic", TOPICS)
def test_find_with_key_index_returns_the_same_rows(topic: str, tmp_path: Path) -> None:
    options = tier_options(topic)
    report = kts_source.index_keys(options, str(tmp_path), secret=SECRET)
    assert report.left_out == ()
    assert report.segments == report.read > 0
    chance = random.Random(topic)
    existing_keys = list({row[0] for row in rows(expected_table(topic, "read_uncommitted"))})
    for count in (1, 1, 3):
        keys = [*chance.sample(existing_keys, min(count, len(existing_keys))), b"unknown key"]
        expected, full = run_search(options, None, keys)
        found, certificate = run_search(options, tmp_path, keys, key_index_secret=SECRET)
        assert found == expected
        assert certificate.complete == full.complete
        read = sum(partition.segments for partition in full.partitions)
        assert read == sum(
            partition.segments + partition.ruled_out for partition in certificate.partitions
        )
    found, certificate = run_search(options, tmp_path, [b"unknown key"], key_index_secret=SECRET)
    assert (found, certificate.bytes, certificate.records) == ([], 0, 0)
    assert certificate.complete
    assert any("Filters of keys" in text for text in certificate.assumptions)
    second = kts_source.index_keys(options, str(tmp_path), secret=SECRET)
    assert (second.segments, second.read) == (report.segments, 0)
    assert run_search(options, tmp_path, [existing_keys[0]], key_index_secret=SECRET)[0] != []


def write_keyed_tier(root: Path, segments: int = 12) -> DamagedTier:
    """Writes a tier with segments of ten records. Key `k<n>` is only in segment n. Segment 3 also
    contains a record without a key.
    """
    builder = LogBuilder()
    for number in range(segments):
        records = [SimpleRecord(b"v" * 50, b"k%d" % number) for _ in range(10)]
        builder.append([*records, SimpleRecord(b"v")] if number == 3 else records)
        builder.roll()
    return write_tier(root, list(builder.build().segments))


def options_of(tier: DamagedTier) -> dict[str, str]:
    return {"path": str(tier.root), "subscribe": TOPIC}


def test_find_reads_only_segments_with_the_keys(tmp_path: Path) -> None:
    tier = write_keyed_tier(tmp_path / "tier")
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(tier), str(folder))
    for keys, segments in (([b"k5"], 1), ([b"k5", b"k7"], 2), ([None], 1), ([None, b"k3"], 1)):
        table, certificate = run_search(options_of(tier), folder, keys)
        assert {row[2] for row in table} == set(keys)
        (partition,) = certificate.partitions
        assert (partition.segments, partition.ruled_out) == (segments, 12 - segments)
        assert certificate.requests == segments
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_find_does_not_use_the_filter_of_a_changed_segment(tmp_path: Path) -> None:
    tier = write_keyed_tier(tmp_path / "tier")
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(tier), str(folder))
    path = next(tier.root.rglob("*00101-*.log"))
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    _, certificate = run_search(options_of(tier), folder, [b"unknown"])
    (partition,) = certificate.partitions
    assert (partition.segments, partition.ruled_out) == (1, 11)
    assert kts_source.index_keys(options_of(tier), str(folder)).read == 1
    _, certificate = run_search(options_of(tier), folder, [b"unknown"])
    assert certificate.partitions[0].ruled_out == 12


def test_find_reads_new_segments_without_key_filter(tmp_path: Path) -> None:
    tier = write_keyed_tier(tmp_path / "tier", 5)
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(tier), str(folder))
    for path in write_keyed_tier(tmp_path / "later", 8).root.rglob("*.*"):
        target = tier.root / path.relative_to(tmp_path / "later")
        if not target.exists():
            shutil.copy(path, target)
    table, certificate = run_search(options_of(tier), folder, [b"k6"])
    assert len(table) == 10
    assert certificate.partitions[0].segments == 3
    report = kts_source.index_keys(options_of(tier), str(folder))
    assert (report.segments, report.read) == (8, 3)


def test_unreadable_segment_has_no_filter(tmp_path: Path) -> None:
    tier = write_keyed_tier(tmp_path / "tier")
    path = sorted(tier.root.rglob("*.log"))[4]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    report = kts_source.index_keys(options_of(tier), str(tmp_path / "index"))
    ((key, reason),) = report.left_out
    assert key.endswith(path.name)
    assert "CRC" in reason
    _, certificate = run_search(options_of(tier), tmp_path / "index", [b"unknown"])
    assert not certificate.complete
    assert len(certificate.partitions[0].unread) == 1


@pytest.mark.parametrize("seed", range(40))
def test_search_with_damaged_key_index_returns_all_matching_rows(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    tier = write_keyed_tier(tmp_path / "tier")
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(tier), str(folder), secret=SECRET)
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    if chance.random() < 0.3:
        data = data[: chance.randrange(len(data))]
    else:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)
    keys = [b"k%d" % chance.randrange(12), b"k%d" % chance.randrange(12)]
    table, certificate = run_search(options_of(tier), folder, keys, key_index_secret=SECRET)
    assert {row[2] for row in table} == set(keys)
    assert len(table) == 10 * len(set(keys))
    assert certificate.complete


def test_invalid_secret_or_folder_of_key_index_is_refused(tmp_path: Path) -> None:
    tier = write_keyed_tier(tmp_path / "tier")
    options, folder = options_of(tier), str(tmp_path / "index")
    with pytest.raises(InvalidOptionError, match="into the tier"):
        kts_source.index_keys(options, str(tier.root / "index"))
    (tmp_path / "link").symlink_to(tier.root)
    with pytest.raises(InvalidOptionError, match="into the tier"):
        kts_source.index_keys(options, str(tmp_path / "link"))
    with pytest.raises(InvalidOptionError, match="16 to 64 bytes"):
        kts_source.index_keys(options, folder, secret=b"short")
    with pytest.raises(InvalidOptionError, match="folder of this machine"):
        kts_source.index_keys(options, "s3://bucket/index")
    with pytest.raises(InvalidOptionError, match="remove where"):
        kts_source.index_keys({**options, "where": "offset > 3"}, folder)
    with pytest.raises(InvalidOptionError, match="give a secret"):
        kts_source.index_keys(tier_options("encrypted"), folder)
    kts_source.index_keys(options, folder, secret=SECRET)
    for secret in (None, SECRET + b"x"):
        with pytest.raises(InvalidOptionError, match="another secret"):
            run_search(options, tmp_path / "index", [b"k1"], key_index_secret=secret)
    with pytest.raises(InvalidOptionError, match="another secret"):
        kts_source.index_keys(options, folder)
    with pytest.raises(InvalidOptionError, match="needs keys"):
        kts_source.find(options, value_contains="x", key_index=folder)
    search = kts_source.find(options, keys=[b"k1"], key_index=folder, key_index_secret=SECRET)
    assert SECRET.decode() not in repr(vars(search))


def test_key_filter_of_offset_range_is_not_used_for_larger_range(tmp_path: Path) -> None:
    """The index covers only offsets from 1 on, so a search must still return the row at offset
    0.
    """
    builder = LogBuilder()
    builder.append([SimpleRecord(b"v", key) for key in (b"early", b"late", b"late")])
    builder.roll()
    tier = write_tier(tmp_path / "tier", list(builder.build().segments))
    folder = tmp_path / "index"
    bounds = {"startingOffsets": f'{{"{TOPIC}":{{"0":1}}}}'}
    assert kts_source.index_keys({**options_of(tier), **bounds}, str(folder)).segments == 1
    assert len(run_search(options_of(tier), folder, [b"early"])[0]) == 1
    assert run_search({**options_of(tier), **bounds}, folder, [b"early"])[1].requests == 0


def test_key_filter_with_wrong_checksum_is_not_used(tmp_path: Path) -> None:
    """The test changes a stored key hash in each filter. The filters still have a valid structure,
    so only the checksum shows the change.
    """
    tier = write_keyed_tier(tmp_path / "tier")
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(tier), str(folder))
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    for number in range(12):  # each filter has two borders and one key
        data[12 * number + 8] ^= 1
    file.write_bytes(data)
    for number in range(12):
        table, certificate = run_search(options_of(tier), folder, [b"k%d" % number])
        assert len(table) == 10
        assert certificate.partitions[0].ruled_out == 0


def test_index_and_find_commands_use_key_filters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tier = write_keyed_tier(tmp_path / "tier")
    secret, folder = tmp_path / "secret", str(tmp_path / "index")
    secret.write_bytes(SECRET)
    path = str(tier.root)
    assert main(["index", path, "--to", folder, "--secret-file", str(secret)]) == 0
    assert capsys.readouterr().out.startswith("12 segments have filters, 12 of them were read")
    flags = ("--key", "k4", "--key-index", folder)
    assert main(["find", path, *flags, "--secret-file", str(secret), "--offsets"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 10
    assert "1 requests" in err
    assert main(["find", path, *flags]) == 2
    assert main(["find", path, "--key", "k4", "--secret-file", str(secret)]) == 2
    assert main(["index", path, "--to", path]) == 2


def test_key_filter_looks_up_many_keys_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup of all keys at once would need gigabytes of memory."""
    chance = np.random.default_rng(3)
    added = chance.integers(0, 2**64, 100_000, np.uint64, endpoint=False)
    key_filter = KeyFilter.of(added)
    sizes: list[int] = []
    plain = KeyFilter._may_hold

    def counted(self: KeyFilter, hashes: Any) -> bool:  # noqa: ANN401
        sizes.append(len(hashes))
        return plain(self, hashes)

    monkeypatch.setattr(KeyFilter, "_may_hold", counted)
    others = chance.integers(0, 2**64, 100_000, np.uint64, endpoint=False)
    others = others[~np.isin(others >> np.uint64(16), added >> np.uint64(16))]
    assert not key_filter.may_hold(others)
    assert max(sizes) <= 1 << 14
    assert sum(sizes) == len(others)
    for position in (0, 20_000, len(others)):
        assert key_filter.may_hold(np.insert(others, position, added[7]))
