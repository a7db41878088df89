"""`kts find`: records that somebody looks for, and a certificate of what was searched."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import DownloadColumn, Progress

from kts_source.cli.index_command import read_secret
from kts_source.cli.key_file import FORMATS, LINES, from_hex, read_keys
from kts_source.cli.record_lines import write_records
from kts_source.cli.scan_options import scan_options
from kts_source.cli.whole_file import remove_file, write_whole
from kts_source.errors import InvalidOptionError
from kts_source.finding.search import find
from kts_source.store.open_store import local_file
from kts_source.texts import format_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kts_source.finding.certificate import Certificate
    from kts_source.finding.query import Conditions

_INCOMPLETE = 3


@click.command("find")
@click.option("--key", "keys", multiple=True, metavar="TEXT", help="A key, as UTF-8.")
@click.option("--key-hex", "hex_keys", multiple=True, metavar="HEX", help="A key, in hex digits.")
@click.option("--no-key", is_flag=True, help="Records without a key.")
@click.option("--keys-file", type=click.Path(dir_okay=False), help="A file of keys.")
@click.option(
    "--keys-format",
    type=click.Choice(FORMATS),
    default=LINES,
    show_default=True,
    help="lines: a key a line, in UTF-8; hex: in hex digits; length: each key behind its length.",
)
@click.option("--value-contains", metavar="TEXT", help="Bytes in the value, as UTF-8.")
@click.option("--value-matches", metavar="REGEX", help="A regular expression of RE2 in the value.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME[=VALUE]", help="A header, as UTF-8."
)
@click.option("--producer-id", "producers", multiple=True, type=int, help="Who wrote the record.")
@click.option(
    "--partitionerPruning",
    "pruning",
    is_flag=True,
    help="Search only the partitions that Kafka's default partitioner writes the keys to.",
)
@click.option(
    "--num-partitions",
    type=click.IntRange(min=1),
    help="How many a topic has, for --partitionerPruning; as many as the tier shows.",
)
@click.option(
    "--key-index", metavar="FOLDER", help="What kts index wrote: other segments are not read."
)
@click.option(
    "--secret-file", type=click.Path(dir_okay=False), help="The one that it was written with."
)
@click.option("--offsets", is_flag=True, help="Where the records are, and nothing else of them.")
@click.option(
    "--certificate", type=click.Path(dir_okay=False), help="File for the certificate, as JSON."
)
@click.option("--threads", type=click.IntRange(min=1), help="Tasks at a time; one a core.")
@scan_options("path", "topic", every_topic=True)
def find_command(
    options: Mapping[str, str],
    *,
    certificate: str | None,
    threads: int | None,
    **flags: Any,  # noqa: ANN401  # texts, flags and numbers
) -> None:
    """Prints all records that meet all conditions, and certifies what was searched for them."""
    if flags["offsets"]:
        if "columns" in options:
            raise InvalidOptionError("--offsets and --columns are the same: give one")
        options = {**options, "columns": "topic,partition,offset"}
    if certificate is not None:
        local_file(certificate)
    search = find(options, **_conditions(flags))
    if certificate is not None:
        remove_file(certificate)  # an earlier search proves nothing of what this one prints
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), DownloadColumn())
    shown = console.is_terminal and not sys.stdout.isatty()
    with Progress(*columns, console=console, disable=not shown) as bar:
        done = bar.add_task("searched", total=None)
        advance: Callable[[int, int], object] = lambda read, every: bar.update(  # noqa: E731
            done, completed=read, total=every
        )
        with closing(search.batches(threads=threads, progress=advance)) as batches:
            for batch in batches:
                write_records(batch, "json")
    sys.stdout.flush()
    proof = search.certificate
    if certificate is not None:
        write_whole(certificate, proof.to_json() + "\n")
    _print(proof)
    click.get_current_context().exit(0 if proof.complete else _INCOMPLETE)


def _conditions(flags: Mapping[str, Any]) -> Conditions:
    conditions: Conditions = {}
    keys: list[bytes | None] = [_in_utf8(key, "--key") for key in flags["keys"]]
    keys += [from_hex(text, "--key-hex") for text in flags["hex_keys"]]
    if flags["no_key"]:
        keys.append(None)
    if flags["keys_file"] is not None:
        keys += read_keys(flags["keys_file"], flags["keys_format"])
    if keys:
        conditions["keys"] = keys
    if flags["value_contains"] is not None:
        conditions["value_contains"] = _in_utf8(flags["value_contains"], "--value-contains")
    if flags["value_matches"] is not None:
        conditions["value_matches"] = flags["value_matches"]
    conditions["headers"] = _headers(flags["headers"])
    conditions["producer_ids"] = flags["producers"]
    conditions["partitioner_pruning"] = flags["pruning"]
    if flags["key_index"] is not None:
        conditions["key_index"] = flags["key_index"]
        conditions["key_index_secret"] = read_secret(flags["secret_file"])
    elif flags["secret_file"] is not None:
        raise InvalidOptionError("--secret-file is for --key-index alone")
    if flags["num_partitions"] is not None:
        conditions["num_partitions"] = flags["num_partitions"]
    return conditions


def _headers(texts: Sequence[str]) -> list[str | tuple[str, bytes]]:
    found: list[str | tuple[str, bytes]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        _in_utf8(name, "--header")
        found.append((name, _in_utf8(value, "--header")) if equals else name)
    return found


def _in_utf8(text: str, flag: str) -> bytes:
    """Raises `InvalidOptionError` for what the shell gave as other bytes."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        hint = ": use --key-hex" if flag == "--key" else ""
        raise InvalidOptionError(f"{flag} is not in UTF-8{hint}") from None


def _print(proof: Certificate) -> None:
    """On standard error: the records have the other one."""
    for fault in proof.faults:
        _say(f"NOT SEARCHED: {fault}")
    for what in proof.outside:
        _say(f"not part of the search: {what}")
    for part in proof.partitions:
        place = f"{part.topic}-{part.partition}"
        for one in part.unread:
            where = "" if one.object is None else f" ({one.object})"
            _say(f"NOT SEARCHED: {place}, offsets [{one.start}, {one.stop}): {one.reason}{where}")
        if part.unserved:
            count = sum(len(one.objects) for one in part.unserved)
            _say(f"{place}: {count} objects hold what is not of the log; it was not searched")
    _say(
        f"{proof.matches:,} records of {proof.records:,} in {len(proof.partitions)} partitions;"
        f" {format_bytes(proof.bytes)} in {proof.requests:,} requests; {proof.isolation_level}"
    )
    _say("complete" if proof.complete else "NOT COMPLETE: there may be other records")


def _say(text: str) -> None:
    click.echo(printable(text), err=True)
