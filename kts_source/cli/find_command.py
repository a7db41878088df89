"""`kts find`: records that somebody looks for, and a certificate of what was searched.

Files of keys.

lines    a key a line, in UTF-8, without the line feed; no empty lines, no control characters, and
         no blanks at an end
hex      likewise, each byte as two hex digits
length   for each key its length as int32, big-endian, −1 for a record without a key, and the bytes

`kts index`: filters of keys, for `kts find --key-index`.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import DownloadColumn, Progress

from kts_source.cli.output import remove_file, write_records, write_whole
from kts_source.cli.scan_options import scan_options
from kts_source.errors import InvalidOptionError
from kts_source.finding.build_index import index_keys
from kts_source.finding.search import find
from kts_source.store.open_store import local_file
from kts_source.texts import format_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kts_source.finding.certificate import Certificate
    from kts_source.finding.query import Conditions


LINES: Final = "lines"
HEX: Final = "hex"
LENGTH: Final = "length"
FORMATS: Final = (LINES, HEX, LENGTH)
_NO_KEY: Final = -1
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def read_keys(path: str, form: str) -> list[bytes | None]:
    """The keys of a file, as it has them.

    A line that may be meant otherwise is refused: a key that nobody has would be found nowhere, and
    certified so.

    Args:
        path: Of the file.
        form: One of `FORMATS`.

    Raises:
        InvalidOptionError: The file cannot be read, has no key, or is not of the format.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be read: {error.strerror}") from None
    keys = _by_length(path, data) if form == LENGTH else _by_line(path, data, form)
    if not keys:
        raise InvalidOptionError(f"{path} has no key")
    return keys


def _by_line(path: str, data: bytes, form: str) -> list[bytes | None]:
    if data.startswith(_BYTE_ORDER_MARK):
        raise InvalidOptionError(f"{path} begins with a byte order mark: save it without")
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if b"\r" in line:
            raise InvalidOptionError(
                f"line {number} of {path} has a carriage return: save the file with line feeds"
                f" alone, or write keys that have one in format {HEX}"
            )
        if not line.strip():
            raise InvalidOptionError(
                f"line {number} of {path} is empty: format {LENGTH} has empty keys"
            )
    if form == LINES:
        for number, line in enumerate(lines, 1):
            _check_line(line, f"line {number} of {path}")
        return [*lines]
    keys: list[bytes | None] = []
    for number, line in enumerate(lines, 1):
        keys.append(from_hex(line.decode("ascii", "replace"), f"line {number} of {path}"))
    return keys


def _check_line(line: bytes, what: str) -> None:
    """Raises `InvalidOptionError` for a key that looks as if it was written otherwise: a file in
    another encoding, or one with columns.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise InvalidOptionError(f"{what} is not in UTF-8: write it in format {HEX}") from None
    if text != text.strip() or any(ord(one) < 32 or ord(one) == 127 for one in text):
        raise InvalidOptionError(
            f"{what} begins or ends with a blank, or has a control character: if the key does,"
            f" write it in format {HEX}"
        )


def from_hex(text: str, what: str) -> bytes:
    """The bytes of hex digits.

    Raises:
        InvalidOptionError: It is something else.
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidOptionError(f"{what} is not of hex digits, two a byte") from None


def _by_length(path: str, data: bytes) -> list[bytes | None]:
    keys: list[bytes | None] = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        left = len(data) - at - 4
        if left < 0 or size < _NO_KEY or size > left:
            raise InvalidOptionError(f"byte {at} of {path} is not where a key with its length is")
        keys.append(None if size == _NO_KEY else data[at + 4 : at + 4 + size])
        at += 4 + max(size, 0)
    return keys


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


@click.command("index")
@click.option("--to", "folder", required=True, metavar="FOLDER", help="Where; not in the tier.")
@click.option(
    "--secret-file",
    type=click.Path(dir_okay=False),
    help="A file of 16 to 64 bytes that keys are hashed with; encrypted topics need one.",
)
@scan_options("path", "topic", every_topic=True)
def index_command(options: Mapping[str, str], *, folder: str, secret_file: str | None) -> None:
    """Writes filters of the keys of each segment, so that searches read few segments."""
    report = index_keys(options, folder, secret=read_secret(secret_file))
    for key, reason in report.left_out:
        click.echo(printable(f"no filter: {key}: {reason}"), err=True)
    click.echo(
        f"{report.segments:,} segments have filters, {report.read:,} of them were read;"
        f" {format_bytes(report.bytes)}"
    )
    click.get_current_context().exit(1 if report.left_out else 0)


def read_secret(path: str | None) -> bytes | None:
    """The secret in a file, as it is.

    Raises:
        InvalidOptionError: The file cannot be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be read: {error.strerror}") from None
