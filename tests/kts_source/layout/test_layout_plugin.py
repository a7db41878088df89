"""Checks that the layout plugin of the documentation works as a separately installed package."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.layout.aiven import AivenLayout
from kts_source.layout.find_layout import find_layout
from segment_format.errors import InvalidManifestError
from tests.kts_source.planning.scanning import scan
from tests.uniform_batches import uniform_segment, write_uniform_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.layout.layout import Layout

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "layout-plugin.md").read_text()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs the plugin of the documentation as a distribution with an entry point."""
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(code.splitlines()) <= 60
    (name, target) = re.findall(r'(\S+) = "(named_files:\w+)"', TEXT)[0]
    site = tmp_path / "site"
    info = site / "named_files-1.dist-info"
    info.mkdir(parents=True)
    (site / "named_files.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: named-files\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[kts_source.layouts]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("named_files", None)


def write_tier(root: Path, version: str = "v1") -> int:
    offset = 0
    folder = root / "orders" / "0"
    folder.mkdir(parents=True)
    for _ in range(3):
        batches = write_uniform_batches(
            batch_count=20, records_per_batch=10, value_size=100, base_offset=offset
        )
        files = uniform_segment(batches, log_start=0, index_interval_bytes=1000)
        stem = f"{files.base_offset}-{files.next_offset - 1}.{version}"
        (folder / f"{stem}.log").write_bytes(files.log)
        (folder / f"{stem}.index").write_bytes(files.index)
        (folder / f"{stem}.epochs").write_bytes(files.leader_epoch_checkpoint)
        offset = batches.next_offset
    return offset


@pytest.mark.usefixtures("plugin")
def test_documented_plugin_reads_tier(tmp_path: Path) -> None:
    records = write_tier(tmp_path / "tier")
    options = {
        "path": str(tmp_path / "tier"),
        "subscribe": "orders",
        "layout": "named-files",
        "isolationLevel": "read_uncommitted",
    }
    assert scan(options)["offset"].to_pylist() == list(range(records))
    sliced = scan({**options, "targetPartitionBytes": "8k"})
    assert sorted(sliced["offset"].to_pylist()) == list(range(records))


@pytest.mark.usefixtures("plugin")
def test_documented_plugin_raises_error_for_unknown_format_version(tmp_path: Path) -> None:
    write_tier(tmp_path / "tier", "v2")
    with pytest.raises((TieredKafkaError, InvalidManifestError), match=r"'2'.*supported: 1"):
        scan({"path": str(tmp_path / "tier"), "subscribe": "orders", "layout": "named-files"})


def test_unknown_layout_error_lists_available_layouts() -> None:
    with pytest.raises(InvalidOptionError, match=r"aiven.*local-tiered-storage"):
        find_layout("nosuch")


@pytest.mark.usefixtures("plugin")
def test_unknown_layout_error_lists_installed_plugins() -> None:
    with pytest.raises(InvalidOptionError, match="named-files"):
        find_layout("nosuch")


def test_layouts_declare_format_versions() -> None:
    layouts: list[Layout] = [find_layout("aiven"), find_layout("local-tiered-storage")]
    assert all(layout.format_versions for layout in layouts)
    assert AivenLayout.format_versions == ("1",)
