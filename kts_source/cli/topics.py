"""What `kts topics` says of every partition, also of those whose private key is not given."""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from kts_source.errors import KeyPrefixError, StoreError, TierNotFoundError
from kts_source.layout.find_layout import find_layout
from kts_source.options import parse_options
from kts_source.planning.describe import PartitionWatermark, describe
from kts_source.planning.key_prefix import likely_prefixes
from kts_source.planning.locked import (
    locked_partition,
    only,
    partitions_with_keys,
    unless_locked,
)
from kts_source.quiet import errors_only
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.segment_catalog import ListedPartition


def topic_rows(options: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row a partition, as `TierDescription.to_arrow` names the columns, and `keys_needed`.

    A partition that cannot be described for want of a private key has the facts of its manifests
    only: offsets are null, and `keys_needed` names the key ids. Where no key prefix is given and
    only one comes into question, it is taken, and standard error says so.

    Raises:
        TieredKafkaError: As `describe`, missing keys aside.
    """
    given = parsed = replace(parse_options(options), fail_on_data_loss=False)
    while True:
        try:
            rows = _rows(parsed)
        except (TierNotFoundError, KeyPrefixError) as error:
            found = "" if given.key_prefix else _meant(parsed, error)
            if len(found) <= len(parsed.key_prefix):
                raise
            parsed = replace(parsed, key_prefix=found)
        else:
            break
    if parsed != given:
        prefix = parsed.key_prefix
        click.echo(f"found under keyPrefix {prefix!r}: give it as --keyPrefix {prefix}", err=True)
    return rows


def _meant(options: ScanOptions, error: TierNotFoundError | KeyPrefixError) -> str:
    """The only key prefix that an error may be about; empty if there is none, or more."""
    if isinstance(error, KeyPrefixError):
        return error.key_prefix
    if isinstance(error, StoreError):
        return ""
    with closing(open_tier(options)) as tier:
        layout, wanted = (
            find_layout(
                options.layout, end_of_log=options.end_of_log, paths=1 + len(options.disk_paths)
            ),
            options.selection.wanted(()),
        )
        found = likely_prefixes(tier.store, layout, options.key_prefix, wanted)
    return found[0] if len(found) == 1 else ""


def _rows(parsed: ScanOptions) -> list[dict[str, Any]]:
    if parsed.by_metadata_topic:  # what follows lists
        return _described(parsed)
    if (described := unless_locked(lambda: _described(parsed))) is not None:
        return described
    with errors_only("kts_source"):  # the first attempt has said what there is to say
        found = partitions_with_keys(parsed)
        open_ones = [part for part, keys in found if not keys]
        rows = _described(only(parsed, open_ones)) if open_ones else []
        for part, keys in found:
            if keys:
                rows += _of_locked(parsed, part, keys)
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _described(options: ScanOptions) -> list[dict[str, Any]]:
    return [{**row, "keys_needed": []} for row in describe(options).to_arrow().to_pylist()]


def _of_locked(
    options: ScanOptions, part: ListedPartition, keys: tuple[str, ...]
) -> list[dict[str, Any]]:
    # Old segments may be encrypted where nothing that describing needs is.
    described = unless_locked(lambda: _described(only(options, [part])))
    if described is not None:
        return described
    locked = locked_partition(part, keys)
    row: dict[str, Any] = dict.fromkeys(field.name for field in fields(PartitionWatermark))
    told = {name: getattr(locked, name) for name in row if hasattr(locked, name)}
    row |= told | {"orphans": list(locked.orphans), "keys_needed": list(keys)}
    return [row]
