"""The S3 client of a process: s3fs over a session that is fast to make.

A worker that Spark forked for one short query waits for the session before its first byte. It uses
internals of s3fs and botocore. Where these differ from what it expects, or with `KTS_TUNING=off`
(`docs/tuning.md`), s3fs makes its own session.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kts_source.store.botocore_log import hide_tokens
from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

log = logging.getLogger(__name__)


def connect(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401  # s3fs ships no types
    """A file system that tries each request once. Nothing is asked of the store yet.

    Args:
        arguments: Of `s3fs.S3FileSystem`, see `storage_options.s3_arguments`.
    """
    import s3fs

    hide_tokens()
    filesystem = s3fs.S3FileSystem(**arguments, skip_instance_cache=True)
    filesystem.retries = 1
    if is_on():
        try:
            if filesystem.session is None:
                filesystem.session = _session(filesystem.kwargs)
        except Exception as error:  # noqa: BLE001  # it only saves time; the text may hold arguments
            log.info("the session of s3fs itself is used: %s", type(error).__name__)
    return filesystem


def _session(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
    import aiobotocore.session

    session = aiobotocore.session.AioSession(**arguments)
    loader = _loader(session.get_config_variable("data_path"))
    session.register_component("data_loader", loader)
    return session


@functools.cache
def _loader(data_path: str | None) -> Any:  # noqa: ANN401
    """Reads the descriptions of services, once for all sessions of this process. Every task has a
    session, and parsing takes ten times as long as all else of making a client. It does not look
    into the 900 folders of other services.
    """
    import botocore.loaders

    loader = botocore.loaders.create_loader(data_path)
    if "s3" not in _services(loader.search_paths, "service-2"):
        raise LookupError("botocore keeps its descriptions elsewhere")
    loader.list_available_services = functools.partial(_services, loader.search_paths)
    return loader


def _services(search_paths: Iterable[str], type_name: str) -> list[str]:
    """Names that may be services; botocore looks for their descriptions of a type afterwards."""
    folders = (Path(path) for path in search_paths)
    return sorted({one.name for path in folders if path.is_dir() for one in path.iterdir()})
