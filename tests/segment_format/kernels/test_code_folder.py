from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from segment_format.kernels import code_folder

if TYPE_CHECKING:
    import pytest


def test_machine_code_goes_to_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = code_folder.code_folder()
    assert folder is not None
    assert folder.is_relative_to(tmp_path)
    for level in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(level.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_is_not_used(
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


def test_other_sources_get_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An upgrade must never run machine code of the version before."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    before = code_folder.code_folder()
    copy = tmp_path / "kernels"
    copy.mkdir()
    for path in Path(code_folder.__file__).parent.glob("*.py"):
        (copy / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(code_folder, "__file__", str(copy / "code_folder.py"))
    assert code_folder.code_folder() == before
    with (copy / "crc32c.py").open("a") as file:
        file.write("# changed\n")
    assert code_folder.code_folder() != before


def test_other_settings_of_the_compiler_get_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_folder.code_folder()
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert code_folder.code_folder() != before
