"""Options that say where a topic's records stand: the tier, the disks of brokers, and who lists
them.

Each function takes the typed options by name, and whether brokers are named, and raises
`InvalidOptionError` for what contradicts itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kts_source.errors import InvalidOptionError
from kts_source.options.option_table import DISKS, METADATA_TOPIC
from kts_source.store.joined_store import is_beside
from kts_source.store.open_store import refuse_credentials
from kts_source.store.presigned_path import is_presigned

if TYPE_CHECKING:
    from collections.abc import Mapping


def tier_path(values: Mapping[str, Any], *, brokers: bool) -> str:
    """Option `path`; empty where brokers alone are read."""
    if not values["path"] and not brokers:
        raise InvalidOptionError(
            "option 'path' is missing: the root of the tier, such as s3://bucket or file:///folder;"
            " with kafka.bootstrap.servers it may be left out, and brokers alone are read"
        )
    if values["keyPrefix"].startswith("/") or ".." in re.split(r"[/\\]", values["keyPrefix"]):
        raise InvalidOptionError(
            f"option 'keyPrefix' must stay below the path: {values['keyPrefix']!r}"
        )
    return str(values["path"] or "")


def split_disks(path: str, layout: str) -> tuple[str, tuple[str, ...]]:
    """Option `path` of `tier_path`: the first path, and the others of brokers' disks."""
    if layout != DISKS or "," not in path:
        return path, ()
    first, *others = _paths("path", path)
    return first, tuple(others)


def catalog_of(values: Mapping[str, Any], *, brokers: bool) -> str:
    """Option `catalog`."""
    catalog = str(values["catalog"])
    if catalog == METADATA_TOPIC:
        if not brokers:
            raise InvalidOptionError(
                f"option catalog={catalog} needs option kafka.bootstrap.servers: the topic"
                " __remote_log_metadata is read from brokers"
            )
        if not values["path"]:
            raise InvalidOptionError(
                f"option catalog={catalog} needs option 'path': without a tier there are no"
                " segments to look for"
            )
    return catalog


def end_of_log(values: Mapping[str, Any]) -> bool:
    """Option `endOfLog`."""
    if values["endOfLog"] and values["layout"] != DISKS and values["tailPath"] is None:
        raise InvalidOptionError(
            f"option 'endOfLog' is for layout 'kafka-logs' or option 'tailPath', not for layout"
            f" {values['layout']!r} alone: a tier ends where it ends"
        )
    return bool(values["endOfLog"])


def tail_paths(values: Mapping[str, Any], *, brokers: bool) -> tuple[str, ...]:
    """The paths of option `tailPath`. Disks are of a cluster that is gone, so they are not read
    beside brokers.
    """
    if brokers and values["layout"] == DISKS:
        raise InvalidOptionError(
            "layout 'kafka-logs' reads the disks of brokers that are gone; with"
            " kafka.bootstrap.servers they are asked themselves: give one of the two"
        )
    if values["tailPath"] is None:
        return ()
    if brokers:
        raise InvalidOptionError(
            "option 'tailPath' reads the disks of brokers that are gone; with"
            " kafka.bootstrap.servers they are asked themselves: give one of the two"
        )
    if values["layout"] == DISKS:
        raise InvalidOptionError(
            "option 'tailPath' adds brokers' disks to a tier, and with layout 'kafka-logs' option"
            " 'path' has no tier: name all log directories in 'path', separated by commas"
        )
    if is_beside(values["keyPrefix"]):
        raise InvalidOptionError(f"option 'keyPrefix' cannot be {values['keyPrefix']!r} here")
    return _paths("tailPath", values["tailPath"])


def _paths(option: str, text: str) -> tuple[str, ...]:
    """Paths of disks, separated by commas."""
    paths = tuple(path.strip() for path in text.split(","))
    for path in paths:
        if not path:
            raise InvalidOptionError(f"option {option!r} names an empty path between its commas")
        if is_presigned(path):
            raise InvalidOptionError(f"option {option!r} cannot be a list of presigned URLs")
        refuse_credentials(path)
    return paths
