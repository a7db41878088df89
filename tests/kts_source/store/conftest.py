"""Defines the fixtures of the store tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.kts_source.store.one_object import BY_S3FS

if TYPE_CHECKING:
    from pathlib import Path

READERS: dict[str, dict[str, str]] = {"own": {}, "s3fs": BY_S3FS}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> dict[str, str]:
    """Runs a test once with the package's own client and once with s3fs. Returns the options that
    select the client.
    """
    return READERS[str(request.param)]


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes settings for AWS, fsspec and proxies from the environment."""
    for name in os.environ:
        if name.startswith(("AWS_", "FSSPEC_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
