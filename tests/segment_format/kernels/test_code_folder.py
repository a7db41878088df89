from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from segment_format.kernels import code_folder


def test_code_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = code_folder.code_folder()
    assert folder is not None
    assert folder.is_relative_to(tmp_path)
    for level in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(level.stat().st_mode) == 0o700


def test_code_folder_writable_by_others_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    shared = tmp_path / "home" / "tiered-kafka"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    elsewhere = code_folder.code_folder()
    assert elsewhere is not None
    assert elsewhere.is_relative_to(tmp_path / "tmp")
    planted = tmp_path / "tmp" / f"tiered-kafka-{os.getuid()}"
    planted.rename(tmp_path / "aside")
    planted.symlink_to(tmp_path / "aside")
    assert code_folder.code_folder() is None


@pytest.fixture
def nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Points the home and temporary folders at paths that cannot be used."""
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a-file"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "a-file"))


def _owned_by_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches `lstat` to report another owner of `path`. A real change of the owner would need
    root.
    """
    real = Path.lstat

    def lstat(self: Path) -> os.stat_result:
        facts = real(self)
        if self != path:
            return facts
        return os.stat_result([*facts[:4], os.getuid() + 1, *facts[5:10]])

    monkeypatch.setattr(Path, "lstat", lstat)


def test_code_folder_from_environment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere_else: None
) -> None:
    del nowhere_else
    configured = tmp_path / "given"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(configured))
    folder = code_folder.code_folder()
    assert folder is not None
    assert folder.is_relative_to(configured)
    (tmp_path / "link").symlink_to("given/../given")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "link"))
    linked = code_folder.code_folder()
    assert linked is not None
    assert linked.samefile(folder)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
@pytest.mark.parametrize("above", [0, 1, 2])
def test_code_folder_from_environment_writable_by_others_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nowhere_else: None,
    caplog: pytest.LogCaptureFixture,
    above: int,
    mode: int,
) -> None:
    del nowhere_else
    configured = tmp_path / "a" / "b" / "c"
    configured.mkdir(parents=True)
    (configured, *parents) = configured, configured.parent, configured.parent.parent
    (configured, *parents)[above].chmod(mode)
    monkeypatch.setattr(code_folder, "_refused", set())
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(configured))
    assert code_folder.code_folder() is None
    assert list(configured.iterdir()) == []
    assert "NUMBA_CACHE_DIR is not used" in caplog.text
    caplog.clear()
    code_folder.code_folder()
    assert not caplog.text


def test_code_folder_below_sticky_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere_else: None
) -> None:
    del nowhere_else
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "sticky"))
    assert code_folder.code_folder() is not None
    (tmp_path / "sticky" / "tiered-kafka").chmod(0o1777)  # code_folder() uses this subfolder
    assert code_folder.code_folder() is None


@pytest.mark.parametrize("whose", ["a", "a/b", "a/b/tiered-kafka", "a/b/tiered-kafka/numba"])
def test_code_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere_else: None, whose: str
) -> None:
    del nowhere_else
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert code_folder.code_folder() is not None
    _owned_by_another(tmp_path / whose, monkeypatch)
    assert code_folder.code_folder() is None


def test_code_folder_link_in_shared_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere_else: None
) -> None:
    del nowhere_else
    (tmp_path / "mine").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "outer").symlink_to(tmp_path / "shared" / "link")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "outer"))
    assert code_folder.code_folder() is not None
    (tmp_path / "shared").chmod(0o777)  # reached through two links
    assert code_folder.code_folder() is None
    (tmp_path / "shared").chmod(0o755)
    _owned_by_another(tmp_path / "shared" / "link", monkeypatch)
    assert code_folder.code_folder() is None


def test_code_folder_changes_if_a_source_file_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After an upgrade, machine code of the previous version must not run."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    before = code_folder.code_folder()
    package = Path(code_folder.__file__).parents[1]
    for subpackage in ("kernels", "values"):
        shutil.copytree(
            package / subpackage, tmp_path / subpackage, ignore=shutil.ignore_patterns("*.pyc")
        )
    copy = tmp_path / "kernels"
    monkeypatch.setattr(code_folder, "__file__", str(copy / "code_folder.py"))
    assert code_folder.code_folder() == before
    for changed in (tmp_path / "values" / "avro" / "wire.py", copy / "crc32c.py"):
        with changed.open("a") as file:
            file.write("# changed\n")
        assert code_folder.code_folder() != before
        before = code_folder.code_folder()


def test_code_folder_changes_if_compiler_settings_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_folder.code_folder()
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert code_folder.code_folder() != before
