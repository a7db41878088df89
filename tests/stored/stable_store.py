"""Golden tiers under URIs and versions that are the same on every machine: `kts-stored://golden`.

What plans and caches keep names objects by their URI and version. A folder's URIs change with the
checkout and its versions with the time of the checkout, so here the ETag is a digest of the bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from kts_source import TieredKafkaDataSource
from tests.golden_data import LOCAL_TIER, TIER, in_order
from tests.stored.samples import FOLDER_TIME_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.stored.samples import ScanSample

SCHEME = "kts-stored"
ROOTS = {"golden": TIER, "local-tier": LOCAL_TIER / "tier"}


class StableFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Files of the golden tiers."""

    protocol = SCHEME
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:  # noqa: ANN401  # as fsspec has it
        text = str(path)
        if text.startswith(f"{SCHEME}://"):
            name, _, key = text.removeprefix(f"{SCHEME}://").partition("/")
            text = str(ROOTS[name] / key)
        return str(super()._strip_protocol(text))

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
        """What is told of an object: no time but a fixed one, and the ETag."""
        entry: dict[str, Any] = super().info(path, **kwargs)
        entry["mtime"] = FOLDER_TIME_NS / 1e9
        if entry["type"] == "file":
            entry["ETag"] = hashlib.md5(Path(entry["name"]).read_bytes()).hexdigest()
        return entry


def register_stable_store() -> None:
    """Makes fsspec know the scheme."""
    fsspec.register_implementation(SCHEME, StableFileSystem, clobber=True)


def path_of(sample: ScanSample, folder: Path) -> str:
    """The path of the sample's store; `folder` is for a copy of the golden tier."""
    if sample.store != "folder":
        return f"{SCHEME}://{sample.store}"
    for topic in sample.topics:
        for source in (TIER / "tiered").glob(f"{topic}-*"):
            shutil.copytree(source, folder / "tiered" / source.name)
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(FOLDER_TIME_NS, FOLDER_TIME_NS))
    return folder.as_uri()


def scanned(options: Mapping[str, str]) -> pa.Table:
    """All rows, through the class that Spark calls."""
    source = TieredKafkaDataSource(dict(options))
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return in_order(pa.Table.from_batches(batches))
