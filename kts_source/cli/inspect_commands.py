"""The commands `kts topics`, `kts describe`, `kts segments`, `kts plan`, `kts schema` and
`kts groups`, which print what a tier contains, what a read would do, and facts about topics and
consumer groups.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.broker.cluster import TopicConfigs, borrowed_cluster, topic_configs
from kts_source.broker.groups import GroupOffset, group_offsets
from kts_source.cli.flags import SERVERS, Command, flag
from kts_source.cli.output import camel_cased, echo_printable, print_json, print_table
from kts_source.cli.scan_options import PLACES, RECORDS, json_flag, scan_options
from kts_source.engines.scan import scan
from kts_source.errors import InvalidOptionError, KeyPrefixError, StoreError, TierNotFoundError
from kts_source.layout.find_layout import find_layout
from kts_source.options import parse_options
from kts_source.planning.describe import OFFSETS_TOPIC, PartitionWatermark, groups_on_disks
from kts_source.planning.planner import plan_scan
from kts_source.planning.segment_catalog import likely_prefixes
from kts_source.reporting.page import describe_unlocked
from kts_source.texts import counted, format_bytes, printable, time_text
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan


def topic_rows(options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns a row for each partition, with the columns of `TierDescription.to_arrow` and the
    column `keys_needed`.

    If a private key for a partition is missing, the row contains only facts from manifests: offsets
    are null, and `keys_needed` lists the ids of the missing keys. Without option `keyPrefix`, the
    key prefix is guessed; if exactly one prefix is likely, it is used and printed to stderr.

    Raises:
        TieredKafkaError: See `describe`. Missing keys raise no error.
    """
    original = parsed = replace(parse_options(options), fail_on_data_loss=False)
    while True:
        try:
            described, locked = describe_unlocked(parsed)
            break
        except (TierNotFoundError, KeyPrefixError) as error:
            prefix = "" if original.key_prefix else _likely_prefix(parsed, error)
            if len(prefix) <= len(parsed.key_prefix):
                raise
            parsed = replace(parsed, key_prefix=prefix)
    if parsed != original:
        prefix = parsed.key_prefix
        click.echo(f"found under --key-prefix {prefix}: set this flag next time", err=True)
    table = [] if described is None else described.description.to_arrow().to_pylist()
    rows: list[dict[str, Any]] = [{**row, "keys_needed": []} for row in table]
    empty = dict.fromkeys(field.name for field in fields(PartitionWatermark))
    for partition in locked:
        row = asdict(partition) | {"reason": partition.reason}
        row |= {name: list(row[name]) for name in ("orphans", "keys_needed")}
        rows.append({**empty, **row})
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _likely_prefix(options: ScanOptions, error: TierNotFoundError | KeyPrefixError) -> str:
    """Returns the key prefix with which the read probably does not raise `error`. Returns "" if no
    prefix or more than one is likely.
    """
    if isinstance(error, KeyPrefixError):
        return error.key_prefix
    if isinstance(error, StoreError):
        return ""
    paths = 1 + len(options.disk_paths)
    layout = find_layout(options.layout, end_of_log=options.end_of_log, paths=paths)
    with closing(open_tier(options)) as tier:
        wanted = options.selection.wanted(())
        prefixes = likely_prefixes(tier.store, layout, options.key_prefix, wanted)
    return prefixes[0] if len(prefixes) == 1 else ""


@click.command(
    cls=Command,
    examples=("kts topics s3://bucket --key-prefix tiered/", "kts topics ./tier --json"),
)
@json_flag
@scan_options("path", essential=(*PLACES, "subscribe"), every_topic=True)
def topics(options: Mapping[str, str], *, as_json: bool) -> None:
    """Print topics and partitions of the tier with their watermarks."""
    rows = topic_rows(options)
    if as_json:
        print_json([camel_cased(row) for row in rows])
        return
    header = ("topic", "partition", "log start", "tier end", "last stable", "segments", "bytes", "")
    names = ("topic", "partition", "log_start", "tier_end", "last_stable_offset", "segments")
    table = [
        (
            *("?" if row[name] is None else row[name] for name in names),
            format_bytes(row["stored_bytes"]),
            counted(len(row["holes"]), "hole") if row["holes"] else row["reason"],
        )
        for row in rows
    ]
    print_table(header, table)


@click.command(cls=Command, examples=("kts segments s3://bucket orders --key-prefix tiered/",))
@json_flag
@scan_options("path", "topic", every_topic=True)
def segments(options: Mapping[str, str], *, as_json: bool) -> None:
    """Print all segments and the offsets that each one serves."""
    rows = list(_segment_rows(plan_scan(parse_options({**options, "failOnDataLoss": "false"}))))
    if as_json:
        print_json(rows)
        return
    names = ("topic", "partition", "segment", "start", "stop", "bytes", "state")
    print_table(names, [tuple(row[name] for name in names) for row in rows])


def _segment_rows(plan: ScanPlan) -> Iterator[dict[str, Any]]:
    for partition in plan.partitions:
        rows = [
            (span.segment, span.start, span.stop, "read") for span in partition.surviving.ranges
        ]
        rows += [
            (s.segment, s.segment.start_offset, s.segment.stop_offset, s.reason)
            for s in partition.surviving.skipped
        ]
        for segment, start, stop, state in sorted(rows, key=lambda row: row[1]):
            yield {
                "topic": partition.topic,
                "partition": partition.partition,
                "topicId": partition.topic_id,
                "segment": segment.segment_id,
                "start": start,
                "stop": stop,
                "bytes": segment.objects.size_in_bytes,
                "storedBytes": segment.objects.log.size,
                "compression": segment.objects.compression,
                "encrypted": segment.objects.encryption is not None,
                "maxTimestampMs": segment.max_timestamp_ms,
                "leaderEpochs": {e.epoch: e.start_offset for e in segment.leader_epochs},
                "key": segment.objects.log.key,
                "state": state,
            }


@click.command(
    cls=Command,
    examples=(
        "kts plan s3://bucket orders --key-prefix tiered/ --where \"key = 'c3'\"",
        "kts plan s3://bucket orders --key-prefix tiered/ --json > plan.json",
    ),
)
@flag("--json", "as_json", is_flag=True, help="Print the plan for --plan-file.")
@scan_options("path", "topic", essential=RECORDS)
def plan(options: Mapping[str, str], *, as_json: bool) -> None:
    """Print what a read would fetch, skip and cost. Reads no records."""
    made = plan_scan(parse_options(options))
    click.echo(made.to_json() if as_json else made.explain())


@click.command(
    cls=Command,
    examples=("kts schema s3://bucket orders --key-prefix tiered/ --value-format json",),
)
@json_flag
@flag(
    "--of",
    type=click.Choice(["value", "key"]),
    default="value",
    help="Print the schema of values or keys. --json prints both.",
)
@scan_options("path", "topic", essential=(*PLACES, "value.format", "key.format"))
def schema(options: Mapping[str, str], *, as_json: bool, of: str) -> None:
    """Print the type of values as DDL. For JSON without a schema, infer the type from a sample."""
    from segment_format.values.json.ddl import print_ddl

    ddls = {
        field.name: print_ddl(field.type)
        for field in scan({**options, "columns": "key,value"}).schema
    }
    if as_json:
        print_json(ddls)
        return
    if not ddls[of].isprintable():
        raise InvalidOptionError(
            "a field name contains a control character: use --json, which escapes it"
        )
    click.echo(ddls[of])


_CONFIGS: Final = (
    "cleanup.policy",
    "compression.type",
    "local.retention.bytes",
    "local.retention.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
)
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
            counted(len(row["holes"]), "hole") if row["holes"] else row["reason"],
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
    if not {"path", SERVERS} & {name.lower() for name in options}:
        raise _no_groups("no brokers and no disks are set")
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
        raise _no_groups("groups are stored on brokers, not in the tier")
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


def _no_groups(problem: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"{problem}: set --bootstrap-servers, or set PATH to disks of stopped brokers and"
        f" --layout {_DISKS}"
    )


def _groups_on_disks(options: Mapping[str, str]) -> list[dict[str, Any]]:
    plain = {name: text for name, text in options.items() if name != "subscribePattern"}
    chosen = {**plain, "subscribe": OFFSETS_TOPIC, "isolationLevel": "read_uncommitted"}
    offsets = groups_on_disks(parse_options(chosen))
    return [{**asdict(partition), **asdict(offset)} for partition, offset in offsets.items()]
