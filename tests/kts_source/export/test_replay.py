"""Tests that replayed dead letters are added to the table exactly once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kts_source.cli.app import main
from kts_source.errors import (
    AccessDeniedError,
    CommitConflictError,
    ExportError,
    InvalidOptionError,
    RejectedRowsError,
)
from kts_source.export import replay
from kts_source.export import run as export_run
from kts_source.export.transforms import Rejected, Transformed
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.killing import Killed
from tests.kts_source.read.typed_tier import T0, TOPIC

if TYPE_CHECKING:
    from kts_source.export.report import BackfillReport

BAD = {3, 7, 15}
HEADERS = (("h", b"1"),)


class Exports:
    """Exports 20 records. The records in `BAD` have invalid JSON."""

    def __init__(self, lake: Lake, *, by_topic: bool = False) -> None:
        self.lake = lake
        self.letters = lake.folder / "letters"
        self.tier = write_tier(lake.folder / "tier", TOPIC)
        self.arguments: dict[str, Any] = {"dead_letters": str(self.letters)}
        if by_topic:
            names = [name for name in self.tier if name.startswith("value.")]
            own = {name: self.tier.pop(name) for name in names}
            self.arguments["topic_options"] = {TOPIC: own}

    def run(self, **arguments: Any) -> BackfillReport:  # noqa: ANN401
        return self.lake.export(self.tier, **{**self.arguments, **arguments})

    def correct(self, offsets: set[int] = BAD) -> None:
        """Replaces the values of dead letters with valid JSON, in the files that contain the dead
        letters.
        """
        for path in self.letters.glob("*.parquet"):
            table = pq.read_table(path)
            values = [
                b'{"id": %d}' % row["offset"] if row["offset"] in offsets else row["value"]
                for row in table.to_pylist()
            ]
            index = table.schema.get_field_index("value")
            pq.write_table(table.set_column(index, "value", pa.array(values, pa.binary())), path)

    def rows(self) -> list[tuple[int, int]]:
        """Returns offset and field `id` of all rows of the table."""
        rows = self.lake.read().to_pylist()
        return sorted((row["offset"], row["value"]["id"]) for row in rows)

    def rejected(self) -> list[int]:
        """Returns the offsets of all dead letters that are not replayed."""
        if not list(self.letters.glob("*.parquet")):
            return []
        table = ds.dataset(str(self.letters), format="parquet").to_table()
        return sorted(table["offset"].to_pylist())


def write_tier(root: Path, topic: str) -> dict[str, str]:
    log = LogBuilder()
    writer = AivenTierWriter(str(root), topic=topic, partition=0)
    for start in (0, 10):
        log.append(
            [
                SimpleRecord(
                    b"{" if number in BAD else b'{"id": %d}' % number,
                    b"k",
                    headers=HEADERS,
                    timestamp=T0 + number,
                )
                for number in range(start, start + 10)
            ]
        )
        files = log.roll()
        assert files is not None
        writer.write_segment(files)
    return {
        "path": str(root),
        "subscribe": topic,
        "cache": "false",
        "includeHeaders": "true",
        "maxSegmentsPerTask": "1",
        "value.format": "json",
        "value.schema": "id bigint",
    }


ALL = [(number, number) for number in range(20)]


@pytest.fixture(params=[*((name, False) for name in FORMATS), ("delta", True)])
def exports(request: pytest.FixtureRequest, tmp_path: Path) -> Exports:
    table_format, by_topic = request.param
    return Exports(Lake(tmp_path, table_format), by_topic=by_topic)


def test_corrected_dead_letters_are_added_once(exports: Exports) -> None:
    assert exports.run().rejected == 3
    assert exports.rejected() == sorted(BAD)
    # A later run, for example after a kill, counts no rejected row, but the files of all runs.
    later = exports.run()
    assert (later.rejected, later.pending_letters) == (0, 2)
    assert "kts_export_pending_dead_letter_files{target=" in later.to_prometheus()
    exports.correct()
    report = exports.run(replay=True)
    assert report.pending_letters == 0
    assert (report.rows, report.rejected, report.replayed, report.commits) == (3, 0, 2, 1)
    assert exports.rows() == ALL
    assert exports.rejected() == []
    headers = exports.lake.read()["headers"].to_pylist()
    assert [[dict(header) for header in row] for row in headers] == (
        [[{"key": "h", "value": b"1"}]] * 20
    )
    assert exports.run(replay=True).replayed == 0
    # Later runs continue, and the row counts in the table include the replayed rows.
    (text,) = exports.run(verify=True).verified[:1]
    assert "verified 20 rows" in text
    assert exports.rows() == ALL


def test_dead_letters_of_a_killed_run_are_published_by_a_run_with_another_folder(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_settings: object, letters: int | None) -> None:
        if letters is not None:
            raise Killed("before the dead letters are published")

    with monkeypatch.context() as patch:
        patch.setattr(export_run, "publish_dead_letters", killed)
        with pytest.raises(Killed):
            exports.run(commit_bytes=1)
    assert exports.rejected() == []
    exports.run(dead_letters=str(exports.lake.folder / "other letters"))
    assert exports.rejected() == [3, 7]
    exports.correct()
    assert exports.run(replay=True).rows == 2


def test_run_succeeds_if_the_folder_of_dead_letters_cannot_be_listed(
    exports: Exports, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AccessDeniedError("ListBucket is not allowed")

    monkeypatch.setattr(replay, "open_target", refuse)
    with caplog.at_level("WARNING"):
        report = exports.run()
    assert (report.rejected, report.pending_letters) == (3, None)
    assert "cannot be counted: ListBucket is not allowed" in caplog.text
    assert "pending_dead_letter_files" not in report.to_prometheus()


def test_dead_letters_that_the_folder_lacks_are_counted(
    exports: Exports, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = exports.run()
    caplog.clear()
    for letters in (str(tmp_path / "second"), None):
        report = exports.run(dead_letters=letters)
        assert report.pending_letters == 2
        assert "kts_export_pending_dead_letter_files{" in report.to_prometheus()
    text = f"records 2 files of dead letters that {tmp_path / 'second'} lacks; run {first.run_id}"
    assert f"{text} wrote to {exports.letters}." in caplog.text
    assert caplog.text.count("records 2 files") == 2
    caplog.clear()
    assert exports.run().pending_letters == 2
    assert "files of dead letters" not in caplog.text


def test_loss_of_dead_letters_is_accepted_once(
    exports: Exports, caplog: pytest.LogCaptureFixture
) -> None:
    exports.run()
    exports.correct()
    lost, kept = sorted(exports.letters.glob("*.parquet"))
    lost.unlink()
    assert exports.run().pending_letters == 2
    assert "records 1 file of dead letters" in caplog.text
    exports.tier["failOnDataLoss"] = "false"
    report = exports.run(replay=True)
    assert (report.replayed, report.lost_letters, report.pending_letters) == (1, 1, 0)
    assert "replayed 1 file of dead letters" in str(report)
    assert "accepted the loss of 1 file of dead letters" in str(report)
    assert not kept.exists()
    del exports.tier["failOnDataLoss"]
    caplog.clear()
    assert exports.run().pending_letters == 0
    assert "files of dead letters" not in caplog.text


def test_damaged_dead_letters_are_named(exports: Exports) -> None:
    exports.run()
    damaged = min(exports.letters.glob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(ExportError, match="a file of dead letters cannot be read") as raised:
        exports.run(replay=True)
    assert ".." not in raised.value.message
    assert raised.value.uri == damaged.as_uri()
    damaged.unlink()  # as the error advises
    exports.tier["failOnDataLoss"] = "false"
    assert exports.run(replay=True, max_rejected="100%").replayed == 1


def test_loss_of_all_dead_letters_is_accepted(exports: Exports) -> None:
    exports.run()
    for path in exports.letters.glob("*.parquet"):
        path.unlink()
    with pytest.raises(ExportError, match="failOnDataLoss=false accepts their loss"):
        exports.run(replay=True)
    exports.tier["failOnDataLoss"] = "false"
    report = exports.run(replay=True)
    assert (report.lost_letters, report.pending_letters) == (2, 0)
    assert "nothing new to write" not in str(report)
    exports.run(verify=True)


def test_dead_letters_that_are_still_invalid_are_rejected_again(exports: Exports) -> None:
    exports.run()
    before = {path.name for path in exports.letters.glob("*.parquet")}
    with pytest.raises(RejectedRowsError):
        exports.run(replay=True, max_rejected="1%")
    assert exports.rejected() == sorted(BAD)
    exports.correct({7})
    report = exports.run(replay=True)
    assert (report.rows, report.rejected) == (1, 2)
    assert ": 1 row in 1 file, 1 commit\n" in str(report)
    assert exports.rejected() == [3, 15]
    assert not before & {path.name for path in exports.letters.glob("*.parquet")}
    exports.correct()
    exports.run(replay=True)
    assert exports.rows() == ALL


@pytest.mark.parametrize("after", [False, True])
def test_killed_replay_continues_exactly_once(exports: Exports, after: bool) -> None:
    exports.run()
    exports.correct()
    table: Any = exports.lake.table(**exports.arguments, replay=True)
    commit = table.commit

    def dies(commit_data: Any) -> bool:  # noqa: ANN401
        if after:
            assert commit(commit_data)
        raise Killed

    table.commit = dies
    with pytest.raises(Killed):
        exports.run(replay=True, table=table)
    table.close()
    assert exports.rejected() == sorted(BAD)
    report = exports.run(replay=True)
    assert report.rows == (0 if after else 3)
    assert exports.rejected() == []
    assert exports.rows() == ALL


def test_concurrent_replays_commit_only_once(exports: Exports) -> None:
    exports.run()
    exports.correct()
    table: Any = exports.lake.table(**exports.arguments, replay=True)
    commit = table.commit

    def after_another(commit_data: Any) -> Any:  # noqa: ANN401
        exports.run(replay=True)
        return commit(commit_data)

    table.commit = after_another
    with pytest.raises(CommitConflictError, match="another run replayed them"):
        exports.run(replay=True, table=table)
    table.close()
    assert exports.rows() == ALL


def test_replay_skips_dead_letters_of_other_tables(exports: Exports, tmp_path: Path) -> None:
    exports.run()
    (tmp_path / "other").mkdir()
    other = Lake(tmp_path / "other", "delta")
    other.export(exports.tier, **exports.arguments)
    exports.correct()
    assert exports.run(replay=True).rows == 3
    assert exports.rows() == ALL
    assert exports.rejected() == sorted(BAD)
    assert other.export(exports.tier, **exports.arguments, replay=True).rows == 3
    assert exports.rejected() == []


def test_replay_from_a_folder_without_dead_letters_of_the_table_is_refused(
    exports: Exports, tmp_path: Path
) -> None:
    exports.run()
    with pytest.raises(ExportError, match="has no dead letters of table") as raised:
        exports.run(replay=True, dead_letters=str(tmp_path / "wrong"))
    assert "It has" not in raised.value.message
    exports.correct()
    for path in exports.letters.glob("*.parquet"):
        table = pq.read_table(path)
        index = table.schema.get_field_index("target")
        other = pa.array(["s3://lake/other"] * table.num_rows)
        (tmp_path / "shared").mkdir(exist_ok=True)
        pq.write_table(table.set_column(index, "target", other), tmp_path / "shared" / path.name)
    with pytest.raises(ExportError, match="dead letters of table s3://lake/other, export"):
        exports.run(replay=True, dead_letters=str(tmp_path / "shared"))
    assert exports.run(replay=True).rows == 3  # as the error advises
    assert exports.rows() == ALL
    assert exports.run(replay=True).replayed == 0


@dataclass(frozen=True)
class LakeAt(Lake):
    """A lake whose target has another spelling."""

    spelling: str

    @property
    def target(self) -> str:
        return self.spelling


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("is_url", [False, True])
def test_dead_letters_are_replayed_for_each_spelling_of_the_target(
    table_format: str, is_url: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = Exports(Lake(tmp_path, table_format))
    absolute = exports.lake.target
    exports.lake = LakeAt(tmp_path, table_format, f"{Path(absolute).name}/")
    monkeypatch.chdir(tmp_path)
    exports.run()
    exports.correct()
    monkeypatch.chdir("/")
    spelling = f"file://{absolute}" if is_url else absolute
    exports.lake = LakeAt(tmp_path, table_format, spelling)
    assert exports.run(replay=True).rows == 3
    exports.lake = Lake(tmp_path, table_format)
    assert exports.rows() == ALL


def test_copied_dead_letters_are_refused(exports: Exports) -> None:
    exports.run()
    exports.correct()
    first = min(exports.letters.glob("*.parquet"))
    copy = first.with_name(f"{'0' * 32}-{'1' * 32}.parquet")
    copy.write_bytes(first.read_bytes())
    with pytest.raises(ExportError, match="contain the same record"):
        exports.run(replay=True)
    copy.unlink()  # as the error advises
    exports.run(replay=True)
    assert exports.rows() == ALL


def test_dead_letters_of_unrecorded_offsets_are_refused(tmp_path: Path) -> None:
    first = Exports(Lake(tmp_path, "parquet"))
    with pytest.raises(ExportError, match="has no commit of this export"):
        first.run(replay=True)
    first.run()
    path = min(first.letters.glob("*.parquet"))
    table = pq.read_table(path)
    index = table.schema.get_field_index("offset")
    far = pa.array([50] * table.num_rows, pa.int64())
    pq.write_table(table.set_column(index, "offset", far), path)
    with pytest.raises(ExportError, match="does not contain the offset") as raised:
        first.run(replay=True)
    assert (raised.value.topic, raised.value.offset) == (TOPIC, 50)


class OnlyEven:
    """A row transform that rejects odd offsets unless `accepts_all`."""

    fingerprint = "even"

    def __init__(self, *, accepts_all: bool = False) -> None:
        self._accepts_all = accepts_all

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        good, bad = [], []
        for row, offset in enumerate(batch.column("offset").to_pylist()):
            if offset % 2 and not self._accepts_all:
                bad.append(Rejected(row, "odd"))
            else:
                good.append(row)
        return Transformed(batch.take(pa.array(good, pa.int64())), tuple(bad))


@pytest.mark.parametrize("table_format", FORMATS)
def test_corrected_transform_replays_rejected_rows(table_format: str, tmp_path: Path) -> None:
    exports = Exports(Lake(tmp_path, table_format))
    for name in ("value.format", "value.schema"):
        del exports.tier[name]
    exports.tier["columns"] = "topic,partition,offset,value,leaderEpoch"
    partition_by = ["topic"]
    exports.run(transform=OnlyEven(), partition_by=partition_by)
    report = exports.run(
        transform=OnlyEven(accepts_all=True), partition_by=partition_by, replay=True
    )
    assert report.rows == 10
    rows = exports.lake.read()
    assert sorted(rows["offset"].to_pylist()) == [*range(20)]
    assert rows["leaderEpoch"].null_count == 0


def test_kts_export_replays_dead_letters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exports = Exports(Lake(tmp_path, "delta"))
    arguments = ["export", exports.tier["path"], TOPIC, exports.lake.target, "--workers", "1"]
    arguments += ["-o", "value.format=json", "-o", "value.schema=id bigint"]
    arguments += [
        "--include-headers",
        "--table-format",
        "delta",
        "--dead-letters",
        str(exports.letters),
    ]
    assert main([*arguments, "--max-rejected", "50%"]) == 0
    exports.correct()
    capsys.readouterr()
    assert main([*arguments, "--replay-dead-letters", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["replayed"]) == (3, 1)
    assert exports.rows() == ALL


@pytest.mark.parametrize(
    "arguments",
    [{}, {"dead_letters": "x", "compact": True}, {"dead_letters": "x", "follow": True}],
)
def test_replay_with_contradicting_arguments_is_refused(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidOptionError, match="replay=True needs dead_letters"):
        Lake(tmp_path, "delta").settings(replay=True, **arguments)
