"""The commands `kts describe` and `kts groups`, which print facts about a topic and about consumer
groups.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.broker.cluster import TopicConfigs, borrowed_cluster, topic_configs
from kts_source.broker.groups import GroupOffset, group_offsets
from kts_source.cli.flags import Command, flag
from kts_source.cli.inspect_commands import topic_rows
from kts_source.cli.output import camel_cased, echo_printable, print_json, print_table, time_text
from kts_source.cli.scan_options import json_flag, scan_options
from kts_source.engines.scan import scan
from kts_source.errors import InvalidOptionError
from kts_source.options import parse_options
from kts_source.texts import format_bytes, printable
from segment_format.metadata.group_offsets import committed_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONFIGS: Final = (
    "cleanup.policy",
    "compression.type",
    "local.retention.bytes",
    "local.retention.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
)
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_DISKS: Final = "kafka-logs"


@click.command(
    cls=Command,
    examples=(
        "kts describe s3://bucket orders --key-prefix tiered/",
        "kts describe s3://bucket orders --key-prefix tiered/ -b broker:9092 --json",
    ),
)
@json_flag
@scan_options("path", "topic")
def describe(options: Mapping[str, str], *, as_json: bool) -> None:
    """Print partitions, watermarks, configuration and group lag.

    Configuration and groups need --bootstrap-servers.
    """
    rows = topic_rows(options)
    topics = sorted({row["topic"] for row in rows})
    configs: dict[str, TopicConfigs] = {}
    groups: list[GroupOffset] = []
    brokers = parse_options(options).brokers
    if brokers is not None:
        with borrowed_cluster(brokers) as cluster:
            configs = topic_configs(cluster, topics, _CONFIGS)
            groups = group_offsets(cluster, topics)
    if as_json:
        print_json(
            {
                "partitions": [camel_cased(row) for row in rows],
                "configs": {topic: configs[topic].values for topic in configs},
                "groups": [_json_of_group(group) for group in groups],
            }
        )
        return
    _print_partitions(rows, with_brokers=brokers is not None)
    for topic, config in configs.items():
        click.echo(f"\n{printable(topic)}:")
        if config.refusal:
            click.echo(f"  configuration: {config.refusal}")
        for name, value in sorted(config.values.items()):
            echo_printable(f"  {name}={value}")
    if brokers is not None:
        click.echo("")
        _print_groups(groups)


def _print_partitions(rows: Sequence[Mapping[str, Any]], *, with_brokers: bool) -> None:
    names = ["topic", "partition", "log_start", "tier_end", "last_stable_offset", "segments"]
    header = ["topic", "partition", "log start", "tier end", "last stable", "segments"]
    if with_brokers:
        names += ["local_start", "high_watermark", "broker_offsets"]
        header += ["local start", "high watermark", "only on brokers"]
    table = [
        (
            *("?" if row[name] is None else row[name] for name in names),
            format_bytes(row["stored_bytes"]),
            f"{len(row['holes'])} holes" if row["holes"] else row["reason"],
        )
        for row in rows
    ]
    print_table((*header, "bytes", ""), table)


def _json_of_group(group: GroupOffset) -> dict[str, Any]:
    return camel_cased({**asdict(group), "lag": group.lag})


def _print_groups(groups: Sequence[GroupOffset]) -> None:
    header = ("group", "state", "topic", "partition", "offset", "end", "lag")
    rows = [
        (
            *(group.group, group.state, group.topic, group.partition, group.offset),
            "?" if group.end is None else group.end,
            "?" if group.lag is None else group.lag,
        )
        for group in groups
    ]
    print_table(header, rows)


@click.command(
    cls=Command,
    examples=(
        "kts groups -b broker:9092",
        "kts groups /var/lib/kafka/data --layout kafka-logs",
    ),
)
@flag("--group", "names", multiple=True, metavar="NAME", help="Only this group. Repeatable.")
@json_flag
@scan_options("path", every_topic=True)
def groups(options: Mapping[str, str], *, names: tuple[str, ...], as_json: bool) -> None:
    """Print the offsets that consumer groups committed.

    Reads them from brokers (--bootstrap-servers), or from the topic __consumer_offsets on the
    disks of stopped brokers (--layout kafka-logs).
    """
    parsed = parse_options(options)
    if parsed.brokers is not None:
        with borrowed_cluster(parsed.brokers) as cluster:
            found = group_offsets(cluster)
        found = [each for each in found if not names or each.group in names]
        if as_json:
            print_json([_json_of_group(each) for each in found])
        else:
            _print_groups(found)
        return
    if parsed.layout != _DISKS:
        raise InvalidOptionError(
            "groups are stored on brokers, not in the tier: set --bootstrap-servers, or set PATH to"
            f" disks of stopped brokers and --layout {_DISKS}"
        )
    rows = [row for row in _groups_on_disks(options) if not names or row["group"] in names]
    if as_json:
        print_json([camel_cased(row) for row in rows])
        return
    header = ("group", "topic", "partition", "offset", "committed")
    print_table(
        header,
        [
            (
                *(row[name] for name in header[:-1]),
                time_text(row["committed_ms"] * 1000),
            )
            for row in rows
        ],
    )


def _groups_on_disks(options: Mapping[str, str]) -> list[dict[str, Any]]:
    plain = {name: text for name, text in options.items() if name != "subscribePattern"}
    chosen = {**plain, "subscribe": _OFFSETS_TOPIC, "columns": "key,value"}
    rows = (row for batch in scan(chosen).batches() for row in batch.to_pylist())
    offsets = committed_offsets((row["key"], row["value"]) for row in rows)
    return [{**asdict(partition), **asdict(offset)} for partition, offset in offsets.items()]
