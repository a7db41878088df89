"""Tests exports that cannot write: a full disk, an unwritable folder of dead letters, and invalid
options. The command writes the metrics of the failed run in each case.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NoReturn

import pytest

from kts_source.cli.app import main
from kts_source.errors import (
    ExportError,
    InvalidOptionError,
    StoreUnavailableError,
    UnsupportedTargetError,
)
from kts_source.export.tables.target_store import LocalTarget
from tests.golden_data import TIER
from tests.kts_source.export.exporting import Lake, source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def fail(number: int) -> Callable[..., NoReturn]:
    def raise_error(*_arguments: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return raise_error


@pytest.fixture(params=["write", "sync"])
def full_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes files of targets fail as on a full disk: when they are written or when they are
    synced.
    """
    if request.param == "write":
        monkeypatch.setattr(
            "kts_source.export.tables.target_store._SyncedFile._write", fail(errno.ENOSPC)
        )
        return
    original = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_full_disk_is_an_export_error_that_names_the_file(
    table_format: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match="cannot be written: No space left on device") as raised:
        Lake(tmp_path, table_format).export(source())
    assert raised.value.uri is not None
    assert raised.value.uri.startswith(str(tmp_path))


def failed_samples(
    tmp_path: Path, *flags: str, target: str | None = None
) -> tuple[int, dict[str, str]]:
    """Runs a failing export and returns its exit code and the samples of its metrics file."""
    metrics, target = tmp_path / "export.prom", target or str(tmp_path / "table")
    metrics.write_text("of an earlier run")
    arguments = ["export", str(TIER), "txn", target, "--key-prefix", "tiered/", "--workers", "1"]
    code = main([*arguments, "--prometheus", str(metrics), *flags])
    lines = (line.rpartition(" ") for line in metrics.read_text().splitlines() if line[0] != "#")
    label = f'{{target="{target}"}}'
    return code, {name.removesuffix(label): value for name, _, value in lines}


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_full_disk_exits_with_1_and_writes_metrics(
    table_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, samples = failed_samples(tmp_path, "--table-format", table_format)
    assert (code, samples["kts_export_success"]) == (1, "0")
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert str(tmp_path / "table") in error
    assert "standard output" not in error


@pytest.mark.usefixtures("full_disk")
def test_full_disk_of_dead_letters_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, samples = failed_samples(tmp_path, "--dead-letters", str(tmp_path / "letters"))
    assert (code, samples["kts_export_success"]) == (1, "0")
    assert (
        "letters cannot be written: No space left on device. Free space" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--dead-letters", "/dev/null/letters"], "letters cannot be written: Not a directory"),
        (["-o", "s3.access.key=x"], "s3.access.key"),
        (["--max-rejected", "101%"], "must be a percentage"),
        (["--export-id", "?"], "use at most 160 letters"),
    ],
)
def test_run_with_invalid_settings_writes_metrics(
    flags: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, samples = failed_samples(tmp_path, *flags)
    assert (code, samples["kts_export_success"]) == (2, "0")
    assert error in capsys.readouterr().err
    assert not list(tmp_path.glob("table/*.parquet"))


def test_unexpected_error_writes_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_arguments: object) -> NoReturn:
        raise OSError(errno.EIO, "unexpected", "some file")

    monkeypatch.setattr(LocalTarget, "open_output", raise_error)
    code, samples = failed_samples(tmp_path)
    assert (code, samples["kts_export_success"]) == (1, "0")


def test_metrics_that_cannot_be_written_do_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_error(*_arguments: object) -> NoReturn:
        raise InvalidOptionError("the metrics cannot be written")

    monkeypatch.setattr("kts_source.cli.export_command.write_atomically", raise_error)
    code, _ = failed_samples(tmp_path, "--max-rejected", "101%")
    assert code == 2
    error = capsys.readouterr().err
    assert "must be a percentage" in error
    assert "the metrics cannot be written" in error


def test_metrics_that_cannot_be_written_after_the_commit_say_that_the_table_is_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_error(*_arguments: object) -> NoReturn:
        raise InvalidOptionError("the metrics cannot be written")

    monkeypatch.setattr("kts_source.cli.export_command.write_atomically", raise_error)
    arguments = ["export", str(TIER), "txn", str(tmp_path / "t"), "--key-prefix", "tiered/"]
    metrics = str(tmp_path / "export.prom")
    assert main([*arguments, "--workers", "1", "--prometheus", metrics]) == 2
    error = capsys.readouterr().err
    assert "the table is up to date, but not its metrics: the metrics cannot be written" in error
    assert list(tmp_path.glob("t/*.parquet"))


def test_successful_export_leaves_no_file_in_dead_letters_folder(tmp_path: Path) -> None:
    letters = tmp_path / "letters"
    Lake(tmp_path, "parquet").export(source(), dead_letters=str(letters))
    assert not [path for path in letters.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EPERM, UnsupportedTargetError),
        (errno.EIO, ExportError),
        (errno.ETIMEDOUT, StoreUnavailableError),
    ],
)
def test_error_of_link_depends_on_its_cause(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", fail(number))
    with pytest.raises(kind, match=os.strerror(number)) as raised:
        LocalTarget(tmp_path).create("key", b"x")
    assert type(raised.value) is kind
    assert not list(tmp_path.iterdir())


def test_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").write_bytes(b"")
    with pytest.raises(ExportError, match="File exists"):
        LocalTarget(tmp_path).create("folder/key", b"x")
