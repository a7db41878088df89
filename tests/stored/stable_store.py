"""Serves the golden tiers with the same URIs and versions on every machine: `kts-stored://golden`.

Plans and caches identify objects by URI and version. For local files, these depend on the path and
the time of the checkout. Objects of this store have an ETag as version, which is the digest of
their bytes.
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
    """Local files of the golden tiers, with a fixed modification time and digests as ETags."""

    protocol = SCHEME
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:  # noqa: ANN401  # signature of fsspec
        text = str(path)
        if text.startswith(f"{SCHEME}://"):
            name, _, key = text.removeprefix(f"{SCHEME}://").partition("/")
            text = str(ROOTS[name] / key)
        return str(super()._strip_protocol(text))

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
        """Returns the entry of an object with a fixed modification time and a digest as ETag."""
        entry: dict[str, Any] = super().info(path, **kwargs)
        entry["mtime"] = FOLDER_TIME_NS / 1e9
        if entry["type"] == "file":
            entry["ETag"] = hashlib.md5(Path(entry["name"]).read_bytes()).hexdigest()
        return entry


def register_stable_store() -> None:
    """Registers the scheme with fsspec."""
    fsspec.register_implementation(SCHEME, StableFileSystem, clobber=True)


def store_path(sample: ScanSample, folder: Path) -> str:
    """Returns the URI of the sample's store; copies its topics if the store is `folder`."""
    if sample.store != "folder":
        return f"{SCHEME}://{sample.store}"
    for topic in sample.topics:
        for source in (TIER / "tiered").glob(f"{topic}-*"):
            shutil.copytree(source, folder / "tiered" / source.name)
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(FOLDER_TIME_NS, FOLDER_TIME_NS))
    return folder.as_uri()


def scan_rows(options: Mapping[str, str]) -> pa.Table:
    """Reads all rows through the data source that Spark calls."""
    source = TieredKafkaDataSource(dict(options))
    reader = source.reader(source.schema())
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return in_order(pa.Table.from_batches(batches))
