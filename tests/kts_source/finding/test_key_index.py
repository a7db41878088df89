"""Filters of keys leave out segments, and never one that has a key."""

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
def test_a_filter_has_all_that_was_put_in(numbers: list[int], other: int) -> None:
    hashes = np.array(numbers, np.uint64)
    made = KeyFilter.of(hashes)
    again = KeyFilter.from_bytes(made.to_bytes(), made.bits)
    for one in hashes:
        assert again.may_hold(np.array([one], np.uint64))
    assert again.may_hold(np.array([*numbers, other], np.uint64)) or not numbers
    assert not again.may_hold(np.empty(0, np.uint64))


def test_many_keys_and_few_mistakes() -> None:
    chance = np.random.default_rng(5)
    hashes = chance.integers(0, 2**64, 400_000, np.uint64, endpoint=False)
    made = KeyFilter.of(hashes)
    assert len(made.to_bytes()) < 4.2 * len(hashes)
    for start in range(0, len(hashes), 4_000):
        buckets = hashes[start : start + 1]
        assert made.may_hold(buckets)
    strangers = chance.integers(0, 2**64, 300_000, np.uint64, endpoint=False)
    wrong = sum(made.may_hold(strangers[at : at + 100]) for at in range(0, len(strangers), 100))
    assert wrong <= 1


def test_hashes_depend_on_secret_and_salt() -> None:
    keys = [b"a", b"b", b""]
    one = hashes_of(keys, salt=SALT, secret=SECRET)
    assert len(set(one.tolist())) == 3
    assert (one == hashes_of(keys, salt=SALT, secret=SECRET)).all()
    assert not (one == hashes_of(keys, salt=SALT, secret=SECRET + b"x")).any()
    assert not (one == hashes_of(keys, salt=b"x" * SALT_SIZE, secret=SECRET)).any()


def found(options: dict[str, str], folder: Path | None, keys: Any, **more: Any) -> Any:  # noqa: ANN401
    if folder is not None:
        more = {"key_index": str(folder), **more}
    search = kts_source.find({**options, "columns": "partition,offset,key"}, keys=keys, **more)
    return rows(search.to_table()), search.certificate


@pytest.mark.parametrize("topic", TOPICS)
def test_the_same_records_with_filters(topic: str, tmp_path: Path) -> None:
    options = tier_options(topic)
    made = kts_source.index_keys(options, str(tmp_path), secret=SECRET)
    assert made.left_out == ()
    assert made.segments == made.read > 0
    chance = random.Random(topic)
    there = list({row[0] for row in rows(expected_table(topic, "read_uncommitted"))})
    for count in (1, 1, 3):
        keys = [*chance.sample(there, min(count, len(there))), b"nobody has this"]
        plain, whole = found(options, None, keys)
        fast, proof = found(options, tmp_path, keys, key_index_secret=SECRET)
        assert fast == plain
        assert proof.complete == whole.complete
        read = sum(part.segments for part in whole.partitions)
        assert sum(part.segments + part.ruled_out for part in proof.partitions) == read
    fast, proof = found(options, tmp_path, [b"nobody has this"], key_index_secret=SECRET)
    assert (fast, proof.bytes, proof.records) == ([], 0, 0)
    assert proof.complete
    assert any("Filters of keys" in text for text in proof.assumptions)
    again = kts_source.index_keys(options, str(tmp_path), secret=SECRET)
    assert (again.segments, again.read) == (made.segments, 0)
    assert found(options, tmp_path, [there[0]], key_index_secret=SECRET)[0] != []


def some_tier(root: Path, segments: int = 12) -> DamagedTier:
    """Ten records a segment; key n stands in segment n alone, segment 3 has a record without."""
    builder = LogBuilder()
    for number in range(segments):
        records = [SimpleRecord(b"v" * 50, b"k%d" % number) for _ in range(10)]
        builder.append([*records, SimpleRecord(b"v")] if number == 3 else records)
        builder.roll()
    return write_tier(root, list(builder.build().segments))


def options_of(tier: DamagedTier) -> dict[str, str]:
    return {"path": str(tier.root), "subscribe": TOPIC}


def test_few_segments_are_read(tmp_path: Path) -> None:
    tier = some_tier(tmp_path / "tier")
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(tier), str(folder))
    for keys, segments in (([b"k5"], 1), ([b"k5", b"k7"], 2), ([None], 1), ([None, b"k3"], 1)):
        table, proof = found(options_of(tier), folder, keys)
        assert {row[2] for row in table} == set(keys)
        (part,) = proof.partitions
        assert (part.segments, part.ruled_out) == (segments, 12 - segments)
        assert proof.requests == segments
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_changed_object_is_read(tmp_path: Path) -> None:
    tier = some_tier(tmp_path / "tier")
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(tier), str(folder))
    path = next(tier.root.rglob("*00101-*.log"))
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    _, proof = found(options_of(tier), folder, [b"nobody"])
    (part,) = proof.partitions
    assert (part.segments, part.ruled_out) == (1, 11)
    assert kts_source.index_keys(options_of(tier), str(folder)).read == 1
    assert found(options_of(tier), folder, [b"nobody"])[1].partitions[0].ruled_out == 12


def test_new_segments_are_read_until_they_have_a_filter(tmp_path: Path) -> None:
    tier = some_tier(tmp_path / "tier", 5)
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(tier), str(folder))
    for path in some_tier(tmp_path / "later", 8).root.rglob("*.*"):
        target = tier.root / path.relative_to(tmp_path / "later")
        if not target.exists():
            shutil.copy(path, target)
    table, proof = found(options_of(tier), folder, [b"k6"])
    assert len(table) == 10
    assert proof.partitions[0].segments == 3
    report = kts_source.index_keys(options_of(tier), str(folder))
    assert (report.segments, report.read) == (8, 3)


def test_what_cannot_be_read_has_no_filter(tmp_path: Path) -> None:
    tier = some_tier(tmp_path / "tier")
    path = sorted(tier.root.rglob("*.log"))[4]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    report = kts_source.index_keys(options_of(tier), str(tmp_path / "index"))
    ((key, reason),) = report.left_out
    assert key.endswith(path.name)
    assert "CRC" in reason
    _, proof = found(options_of(tier), tmp_path / "index", [b"nobody"])
    assert not proof.complete
    assert len(proof.partitions[0].unread) == 1


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_index_hides_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    tier = some_tier(tmp_path / "tier")
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
    table, proof = found(options_of(tier), folder, keys, key_index_secret=SECRET)
    assert {row[2] for row in table} == set(keys)
    assert len(table) == 10 * len(set(keys))
    assert proof.complete


def test_secrets_and_folders(tmp_path: Path) -> None:
    tier = some_tier(tmp_path / "tier")
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
    with pytest.raises(InvalidOptionError, match="leave out where"):
        kts_source.index_keys({**options, "where": "offset > 3"}, folder)
    with pytest.raises(InvalidOptionError, match="give a secret"):
        kts_source.index_keys(tier_options("encrypted"), folder)
    kts_source.index_keys(options, folder, secret=SECRET)
    for secret in (None, SECRET + b"x"):
        with pytest.raises(InvalidOptionError, match="another secret"):
            found(options, tmp_path / "index", [b"k1"], key_index_secret=secret)
    with pytest.raises(InvalidOptionError, match="another secret"):
        kts_source.index_keys(options, folder)
    with pytest.raises(InvalidOptionError, match="needs keys"):
        kts_source.find(options, value_contains="x", key_index=folder)
    search = kts_source.find(options, keys=[b"k1"], key_index=folder, key_index_secret=SECRET)
    assert SECRET.decode() not in repr(vars(search))


def test_filters_are_of_the_offsets_that_were_read(tmp_path: Path) -> None:
    """A search that begins earlier than the index did finds what has no filter."""
    builder = LogBuilder()
    builder.append([SimpleRecord(b"v", key) for key in (b"early", b"late", b"late")])
    builder.roll()
    tier = write_tier(tmp_path / "tier", list(builder.build().segments))
    folder = tmp_path / "index"
    bounds = {"startingOffsets": f'{{"{TOPIC}":{{"0":1}}}}'}
    assert kts_source.index_keys({**options_of(tier), **bounds}, str(folder)).segments == 1
    assert len(found(options_of(tier), folder, [b"early"])[0]) == 1
    assert found({**options_of(tier), **bounds}, folder, [b"early"])[1].requests == 0


def test_a_filter_that_was_changed_is_not_used(tmp_path: Path) -> None:
    """Its borders still fit, so that nothing but the checksum tells."""
    tier = some_tier(tmp_path / "tier")
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(tier), str(folder))
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    for number in range(12):  # two borders and one key each
        data[12 * number + 8] ^= 1
    file.write_bytes(data)
    for number in range(12):
        table, proof = found(options_of(tier), folder, [b"k%d" % number])
        assert len(table) == 10
        assert proof.partitions[0].ruled_out == 0


def test_the_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tier = some_tier(tmp_path / "tier")
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


def test_a_million_keys_are_looked_up_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that stands in the buckets of all keys at once would be gigabytes."""
    chance = np.random.default_rng(3)
    there = chance.integers(0, 2**64, 100_000, np.uint64, endpoint=False)
    made = KeyFilter.of(there)
    sizes: list[int] = []
    plain = KeyFilter._may_hold

    def counted(self: KeyFilter, hashes: Any) -> bool:  # noqa: ANN401
        sizes.append(len(hashes))
        return plain(self, hashes)

    monkeypatch.setattr(KeyFilter, "_may_hold", counted)
    others = chance.integers(0, 2**64, 100_000, np.uint64, endpoint=False)
    others = others[~np.isin(others >> np.uint64(16), there >> np.uint64(16))]
    assert not made.may_hold(others)
    assert max(sizes) <= 1 << 14
    assert sum(sizes) == len(others)
    for at in (0, 20_000, len(others)):
        assert made.may_hold(np.insert(others, at, there[7]))
