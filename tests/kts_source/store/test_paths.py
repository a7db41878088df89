"""Checks that no option and no command treats a misspelled URL as a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.auditing.state import AuditState
from kts_source.cli.app import main
from kts_source.errors import InvalidOptionError, UnsupportedTargetError
from kts_source.export.settings import export_settings
from kts_source.export.tables.target_store import open_target
from kts_source.metrics import summary
from kts_source.options import parse_options
from kts_source.secret import Secret
from kts_source.store.open_store import local_file, open_store, scheme_of
from tests.kts_source.export.tables.rows import tier_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NO_STORAGE: Secret[Any] = Secret({})
NEARLY_S3 = ["s3:bucket/x", "s3:/bucket/x", "S3:/bucket/x", "s3a:/b", "s3://", " s3:bucket"]
NO_SCHEME = ['"s3://bucket/x"', "s3 ://bucket", "\ufeffs3://bucket/x", "s3\u200b://bucket"]
NEARLY = [*NEARLY_S3, "gs:/b/x", "gs://", "abfs:c", "az:/c/x", "http:x", "file:x", "hdfs:x"]
LOCAL = ["orders:1", "./s3:bucket", "s3//bucket/x", "s3", "/data/s3:x", "a b", "file:/tmp/x"]
LOCAL += ["./a://b", "/a://b", "lake@v2/table"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Changes to a new folder, and checks after the test that the folder is still empty."""
    folder = tmp_path / "current"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("path", [*NEARLY, *NO_SCHEME])
@pytest.mark.parametrize(
    "use",
    [
        scheme_of,
        local_file,
        summary,
        lambda path: open_store(path, NO_STORAGE),
        lambda path: open_target(path, NO_STORAGE),
        export_settings,
        lambda path: export_settings("/t", dead_letters=path),
        lambda path: parse_options({"path": "/t", "subscribe": "t", "metricsPath": path}),
        lambda path: parse_options({"path": "/t", "subscribe": "t", "cacheDir": path}),
        lambda path: AuditState(path, "tier"),
    ],
    ids=[
        *("scheme_of", "local_file", "summary", "open_store", "open_target", "target"),
        *("dead_letters", "metricsPath", "cacheDir", "state"),
    ],
)
def test_misspelled_url_is_refused(path: str, use: Callable[[str], object]) -> None:
    with pytest.raises(
        (InvalidOptionError, UnsupportedTargetError), match=r"write \w+:/|Remove quotes"
    ):
        use(path)


@pytest.mark.parametrize("path", LOCAL)
def test_path_with_a_colon_counts_as_local(path: str) -> None:
    assert scheme_of(path) == "file"
    assert local_file(path).is_absolute()


def test_path_error_masks_credentials() -> None:
    with pytest.raises(InvalidOptionError) as caught:
        scheme_of("s3:key:secret@bucket")
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidOptionError) as caught:
        scheme_of("'s3://key:secret@bucket'")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("path", LOCAL)
def test_local_export_target_may_contain_an_at_sign_or_a_colon(path: str) -> None:
    assert export_settings(path).target == path


def test_blanks_around_output_paths_are_removed() -> None:
    settings = export_settings(" s3://bucket/x ", dead_letters="\ts3://bucket/letters")
    assert (settings.target, settings.dead_letters) == ("s3://bucket/x", "s3://bucket/letters")


def run(tmp_path: Path, command: list[str], path: str) -> int:
    """Runs a command that writes to `path`, and returns its exit code."""
    tier_of(tmp_path / "tier", ["a"])
    name, *flags = command
    arguments = [name, str(tmp_path / "tier"), *flags, path]
    return main([str(tmp_path / "out") if text == "TARGET" else text for text in arguments])


@pytest.mark.parametrize("path", ["s3://bucket/x.json", " s3://bucket/x", "s3:x.json", "gs:/b/x"])
@pytest.mark.parametrize(
    "command",
    [
        ["report", "--output"],
        ["find", "t", "--key", "k", "--certificate"],
        ["audit", "t", "--report"],
        ["audit", "t", "--prometheus"],
        ["audit", "t", "--state"],
        ["index", "t", "--to"],
        ["export", "t", "TARGET", "--png"],
    ],
    ids=lambda command: "-".join(command),
)
def test_output_file_in_object_store_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], path: str
) -> None:
    assert run(tmp_path, command, path) == 2
    assert "kts: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", ["s3:x", "s3:/bucket/x", "gs:/b/x", " s3:bucket/x"])
@pytest.mark.parametrize("command", [["export", "t"], ["export", "t", "TARGET", "--dead-letters"]])
def test_export_command_refuses_url_without_bucket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], path: str
) -> None:
    assert run(tmp_path, command, path) == 2
    assert "names no bucket" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_file_url_names_a_local_file(tmp_path: Path) -> None:
    tier_of(tmp_path / "tier", ["a"])
    file = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "tier"), "--output", file.as_uri()]) == 0
    assert file.read_text("utf-8").startswith("<!doctype html>")
    assert local_file(Path("s3:x")) == Path("s3:x")


def test_home_folder_is_expanded_in_local_paths_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    topics = {"subscribe": "t", "keyPrefix": "~/"}
    for path, expanded in (
        ("~/tier", f"{tmp_path}/tier"),
        ("./~/tier", "./~/tier"),
        ("s3://bucket/~", "s3://bucket/~"),
        (f"file://{tmp_path}/~", f"file://{tmp_path}/~"),
    ):
        options = parse_options({"path": path, **topics})
        assert (options.path, options.key_prefix) == (expanded, "~/")
        assert export_settings(path).target == expanded
    disks = {"layout": "kafka-logs", "subscribe": "t"}
    assert parse_options({"path": "~/a,~/b", **disks}).disk_paths == (f"{tmp_path}/b",)
    assert local_file("~/report.html") == tmp_path / "report.html"
