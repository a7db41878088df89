"""Tests `kts find`: its output, its key files, and its exit codes."""

from __future__ import annotations

import base64
import json
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from kts_source.cli.app import main
from kts_source.cli.find_command import read_keys
from kts_source.errors import InvalidOptionError
from kts_source.finding import search
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.auditing.damaged_tier import BASES, healthy_segments, write_tier
from tests.kts_source.read.typed_tier import avro, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kts_source.auditing.damaged_tier import DamagedTier

KEYS = (b"a", b"\xc3\xa9", b"", None, b"\x00\xff")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[int], str]:
    """Runs `kts find`. Returns the exit code, the printed offsets, and the text on standard
    error.
    """
    code = main(["find", *arguments])
    out, err = capsys.readouterr()
    return code, [json.loads(line)["offset"] for line in out.splitlines()], err


@pytest.fixture
def tier(tmp_path: Path) -> DamagedTier:
    """Writes a tier in which the record at offset n has the key `KEYS[n % 5]`."""
    builder = LogBuilder()
    for number in range(2):
        records = [
            SimpleRecord(b"value %d" % n, KEYS[n % 5], ((f"h{n % 3}", b"%d" % n),))
            for n in range(10)
        ]
        builder.append(records, producer_id=number)
        builder.roll()
    return write_tier(tmp_path / "tier", list(builder.build().segments))


def test_find_returns_matching_offsets(
    capsys: pytest.CaptureFixture[str], tier: DamagedTier
) -> None:
    path = str(tier.root)
    cases: dict[tuple[str, ...], list[int]] = {
        ("--key", "a"): [0, 5, 10, 15],
        ("--key", "é", "--key", ""): [1, 2, 6, 7, 11, 12, 16, 17],
        ("--key-hex", "00fF"): [4, 9, 14, 19],
        ("--no-key", "--key-hex", "61"): [0, 3, 5, 8, 10, 13, 15, 18],
        ("--value-contains", "e 7"): [7, 17],
        ("--value-matches", "[35]$"): [3, 5, 13, 15],
        ("--header", "h2", "--key", "a"): [5, 15],
        ("--header", "h2=5"): [5, 15],
        ("--producer-id", "1", "--no-key"): [13, 18],
        ("--where", "offset < 6", "--key", "a"): [0, 5],
        ("--key", "nobody"): [],
    }
    for arguments, offsets in cases.items():
        code, found_offsets, err = run(capsys, path, *arguments)
        assert (code, found_offsets) == (0, offsets), arguments
        assert err.endswith("complete\n")


def test_find_writes_certificate(
    capsys: pytest.CaptureFixture[str], tier: DamagedTier, tmp_path: Path
) -> None:
    file = tmp_path / "proof.json"
    certificate_option = ("--certificate", str(file))
    assert main(["find", str(tier.root), "t", "--key", "a", "--offsets", *certificate_option]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert json.loads(first) == {"topic": "t", "partition": 0, "offset": 0}
    proof = json.loads(file.read_text())
    assert (proof["complete"], proof["matches"], proof["records"]) == (True, 4, 20)
    path = next(tier.root.rglob("*.log"))
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    code, found_offsets, err = run(capsys, str(tier.root), "t", "--key", "a", *certificate_option)
    assert (code, len(found_offsets)) == (3, 2)
    assert "NOT SEARCHED: t-0, offsets [" in err
    assert err.endswith("NOT COMPLETE: there may be other records\n")
    assert json.loads(file.read_text())["complete"] is False


def test_find_deletes_previous_certificate_before_it_searches(
    capsys: pytest.CaptureFixture[str], tier: DamagedTier, tmp_path: Path
) -> None:
    file = tmp_path / "proof.json"
    certificate_option = ("--certificate", str(file))
    assert run(capsys, str(tier.root), "t", "--key", "a", *certificate_option)[0] == 0
    assert run(capsys, str(tier.root), "t", *certificate_option)[0] == 2
    assert file.exists()  # a usage error starts no search
    shutil.rmtree(tier.root)
    assert run(capsys, str(tier.root), "t", "--key", "a", *certificate_option)[0] == 1
    assert not file.exists()
    file.mkdir()
    assert run(capsys, str(tier.root), "t", "--key", "a", *certificate_option)[0] == 2


def test_find_usage_errors_return_exit_code_2(
    capsys: pytest.CaptureFixture[str], tier: DamagedTier, tmp_path: Path
) -> None:
    path = str(tier.root)
    for arguments, text in (
        ((), "no condition: set --key"),
        (("--key-hex", "0g"), "hex digits"),
        (("--key", "\udcff"), "--key-hex"),
        (("--key", "a", "--value-contains", "\udcff"), "not in UTF-8"),
        (("--header", "a=\udcff"), "not in UTF-8"),
        (("--producer-id", "-1"), "a producer id is negative"),
        (("--key", "a", "--offsets", "--columns", "key"), "remove one"),
        (("--keys-file", str(tmp_path / "none")), "cannot be read"),
        (("--key", "a", "--certificate", str(tmp_path / "no" / "c.json")), "cannot be written"),
    ):
        code, _, err = run(capsys, path, *arguments)
        assert code == 2, arguments
        assert text in err


def test_find_reads_keys_from_file(
    capsys: pytest.CaptureFixture[str], tier: DamagedTier, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    sized = b"\x00\x00\x00\x01a" + b"\xff\xff\xff\xff" + b"\x00\x00\x00\x00"
    for form, data, keys in (
        ("lines", "a\né\nx y".encode(), [b"a", "é".encode(), b"x y"]),
        ("hex", b"61\n00ff\n", [b"a", b"\x00\xff"]),
        ("length", sized, [b"a", None, b""]),
    ):
        file.write_bytes(data)
        assert read_keys(str(file), form) == keys
        files = ("--keys-file", str(file), "--keys-format", form)
        _, found_offsets, _ = run(capsys, str(tier.root), *files)
        assert found_offsets == [n for n in range(20) if KEYS[n % 10 % 5] in keys]


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("lines", b""),
        ("lines", b"a\r\nb\r\n"),
        ("lines", b"a\n\nb\n"),
        ("lines", b"\xef\xbb\xbfa\n"),
        ("lines", b"a\rb\rc"),
        ("lines", "key\n".encode("utf-16")),
        ("lines", "key\n".encode("utf-16-le")),
        ("lines", "Müller\n".encode("latin-1")),
        ("lines", b"a\nb \n"),
        ("lines", b"\ta\n"),
        ("lines", b"a\tb\n"),
        ("lines", "a\u00a0\n".encode()),
        ("hex", b"61\r62\n"),
        ("hex", b"61\n  \n"),
        ("hex", b"\xef\xbb\xbf61\n"),
        ("hex", b"6\n"),
        ("hex", b"\xff\xff\n"),
        ("length", b"\x00\x00\x00\x02a"),
        ("length", b"\xff\xff\xff\xfe"),
        ("length", b"\x00\x00\x00"),
        ("length", b"\x7f\xff\xff\xff"),
    ],
)
def test_find_refuses_key_file_with_ambiguous_content(
    tmp_path: Path, form: str, data: bytes
) -> None:
    file = tmp_path / "keys"
    file.write_bytes(data)
    with pytest.raises(InvalidOptionError):
        read_keys(str(file), form)


def write_formats(folder: Path) -> list[str]:
    """Writes a JSON topic, whose value at offset 7 is malformed, and an Avro topic. Returns the
    arguments of a search that decodes JSON.
    """
    json_values: list[bytes | None] = [b'{"a":%d}' % n for n in range(10)]
    json_values[7] = b'{"a":'
    topics: dict[str, list[bytes | None]] = {
        "avro": [avro(n) for n in range(4)],
        "json": json_values,
    }
    for number, (topic, values) in enumerate(topics.items(), 1):
        write(folder, [values], topic, uuid.UUID(int=number))
    return [str(folder), "avro,json", "-o", "cache=false", "--value-format", "json"]


def lines_of(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, object]], str]:
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def test_find_prints_stored_bytes_of_values_that_cannot_be_decoded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = write_formats(tmp_path / "tier")
    keys = ["--key", "k7", "--key", "k3"]
    assert main(["find", *arguments, "--value-schema", "a int", *keys]) == 0
    (of_avro, third, seventh), err = lines_of(capsys)
    assert "value" not in of_avro
    assert of_avro["valueBase64"] == base64.b64encode(avro(3)).decode()
    assert str(of_avro["valueError"]).strip()
    assert (third["value"], "valueError" in third, "valueRaw" in third) == ({"a": 3}, False, False)
    assert (seventh["offset"], seventh["value"]) == (7, '{"a":')
    assert seventh["valueError"] is not None
    assert "NOT SEARCHED" not in err


def test_find_by_field_lists_exactly_the_undecodable_records_as_unread(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [*write_formats(tmp_path / "tier"), "--value-schema", "a int"]
    proof = tmp_path / "proof.json"
    command = ["find", *arguments, "--where", "value.a >= 6", "--certificate", str(proof)]
    assert main(command) == 3
    found, err = lines_of(capsys)
    assert [record["offset"] for record in found] == [6, 8, 9]
    lines = [line for line in err.splitlines() if line.startswith("NOT SEARCHED")]
    assert [line.partition(": offset")[0].partition(";")[0] for line in lines] == [
        "NOT SEARCHED: avro-0, offsets [0, 4): 4 records cannot be decoded",
        "NOT SEARCHED: json-0, offsets [7, 8): a record cannot be decoded",
    ]
    assert "rows cannot be decoded" not in err
    certificate = json.loads(proof.read_text())
    unread = [entry for each in certificate["partitions"] for entry in each["unread"]]
    assert [(entry["start"], entry["stop"]) for entry in unread] == [(0, 4), (7, 8)]
    assert "offset 7: value: " in unread[1]["reason"]


def test_find_joins_ranges_of_many_undecodable_records(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MAX_RANGES", 2)
    bad = {1, 3, 5, 8, 12, 13}
    write(tmp_path / "tier", [[b"{" if n in bad else b'{"a":1}' for n in range(20)]], "t")
    proof = tmp_path / "proof.json"
    command = ["find", str(tmp_path / "tier"), "t", "-o", "cache=false", "--value-format", "json"]
    command += ["--value-schema", "a int", "--where", "value.a = 1", "--certificate", str(proof)]
    assert main(command) == 3
    found, err = lines_of(capsys)
    assert [record["offset"] for record in found] == [n for n in range(20) if n not in bad]
    lines = [line for line in err.splitlines() if line.startswith("NOT SEARCHED")]
    assert [line.partition("; offset")[0] for line in lines] == [
        "NOT SEARCHED: t-0, 6 offsets in 2 ranges of one segment, up to offset 8; --certificate"
        " lists all. The first: offsets [1, 6): at least 3 records cannot be decoded",
        "NOT SEARCHED: t-0, offsets [12, 14): 2 records cannot be decoded",
    ]
    certificate = json.loads(proof.read_text())
    unread = [entry for each in certificate["partitions"] for entry in each["unread"]]
    assert [(entry["start"], entry["stop"]) for entry in unread] == [(1, 6), (8, 9), (12, 14)]


def test_undecoded_ranges_do_not_depend_on_order_and_repetition() -> None:
    ranges = search._UndecodedRanges()
    for offset in (4, 2, 3, 7, 2, 8, 4, 9):
        ranges.add(offset, f"reason {offset}")
    assert [(each.start, each.stop, each.records, each.reason) for each in ranges.ranges] == [
        (2, 5, 3, "reason 2"),
        (7, 10, 3, "reason 7"),
    ]


def test_find_reports_a_missing_segment_once_without_shortening(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    tier.lose(1, "log")
    proof = tmp_path / "proof.json"
    code, offsets, err = run(capsys, str(tier.root), "--no-key", "--certificate", str(proof))
    assert code == 3
    assert offsets
    assert err.count(f"[{BASES[1]}, {BASES[2]})") == 1
    assert err.count(f"{BASES[1]:020d}") == 2  # the names of its manifest and of its indexes
    assert "…" not in err
    assert json.loads(proof.read_text())["faults"] == []


def test_find_prints_binary_values_as_base64_even_if_they_are_utf8(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    values: list[bytes | None] = [b"\0\0\0\0\1abc", b"text\twith\r\nlines", "é".encode()]
    options = write(tmp_path / "tier", [values])
    assert main(["find", options["path"], "-o", "cache=false", "--where", "offset >= 0"]) == 0
    found, _ = lines_of(capsys)
    assert [record.get("value") for record in found] == [None, "text\twith\r\nlines", "é"]
    assert found[0]["valueBase64"] == "AAAAAAFhYmM="


def test_find_reports_a_hole_once_and_without_useless_advice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, _, last = healthy_segments()[:3]
    tier = write_tier(tmp_path / "tier", [first, last])
    code, _, error = run(capsys, str(tier.root), "--no-key", "--offsets")
    assert code == 3
    (line,) = [line for line in error.splitlines() if "hold" in line]
    assert line.startswith("NOT SEARCHED: ")
    assert "fail-on-data-loss" not in error
    assert main(["find", str(tier.root), "--no-key", "--offsets", "--verbose"]) == 3
    assert "this run skips them" in capsys.readouterr().err
