"""The commands `kts find` and `kts index`. `kts find` prints matching records, and a certificate
with the offsets that it searched. `kts index` writes filters of keys, so that searches skip
segments without the wanted keys.

Formats of files that contain keys:

    lines    a key per line in UTF-8, without empty lines, control characters, or spaces at either
             end
    hex      a key per line in hex digits
    length   for each key its length (big-endian int32) and its bytes; length −1 = records without
             key
"""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.cli.flags import Command, Integer, flag
from kts_source.cli.output import (
    check_output,
    echo_printable,
    json_text,
    print_json,
    progress_bar,
    remove_file,
    write_atomically,
)
from kts_source.cli.record_formats import JsonLines, json_records
from kts_source.cli.scan_options import (
    PLACES,
    json_flag,
    parse_topic_options,
    scan_options,
    topic_option_flag,
)
from kts_source.columns import ERROR_COLUMNS, RAW_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.finding.find import find
from kts_source.finding.key_index import index_keys
from kts_source.texts import format_bytes, json_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from kts_source.finding.certificate import Certificate, UnreadRange
    from kts_source.finding.query import Conditions


LINES: Final = "lines"
HEX: Final = "hex"
LENGTH: Final = "length"
FORMATS: Final = (LINES, HEX, LENGTH)
_NO_KEY: Final = -1
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def read_keys(path: str, form: str) -> list[bytes | None]:
    """Reads keys from a file. `form` is its format, one of `FORMATS`.

    An ambiguous line raises an error: a search for a wrongly guessed key would certify that no
    records exist.

    Raises:
        InvalidOptionError: The file is unreadable, contains no key, or does not have the format
            `form`.
    """
    data = _read_file(path)
    keys = _parse_lengths(path, data) if form == LENGTH else _parse_lines(path, data, form)
    if not keys:
        raise InvalidOptionError(f"{path} contains no key: write at least one key into the file")
    return keys


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be read: {error.strerror}") from None


def _parse_lines(path: str, data: bytes, form: str) -> list[bytes | None]:
    if data.startswith(_BYTE_ORDER_MARK):
        raise InvalidOptionError(f"{path} begins with a byte order mark: save it without one")
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    keys: list[bytes | None] = []
    for number, line in enumerate(lines, 1):
        name = f"line {number} of {path}"
        if b"\r" in line:
            raise InvalidOptionError(
                f"{name} has a carriage return: save the file with line feeds only, or write keys"
                f" with carriage returns in format {HEX}"
            )
        if not line.strip():
            raise InvalidOptionError(f"{name} is empty: write empty keys in format {LENGTH}")
        if form == LINES:
            _check_line(line, name)
            keys.append(line)
        else:
            keys.append(from_hex(line.decode("ascii", "replace"), name))
    return keys


def _check_line(line: bytes, name: str) -> None:
    """Raises `InvalidOptionError` if a line is not UTF-8, contains a control character, or begins
    or ends with a space.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise InvalidOptionError(f"{name} is not in UTF-8: write the key in format {HEX}") from None
    if text != text.strip() or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise InvalidOptionError(
            f"{name} contains a control character, or begins or ends with a space: if this is part"
            f" of the key, write the key in format {HEX}"
        )


def from_hex(text: str, name: str) -> bytes:
    """Parses hex digits to bytes. Raises `InvalidOptionError` for other texts; the error begins
    with `name`.
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidOptionError(f"{name} is not hex: write two hex digits per byte") from None


def _parse_lengths(path: str, data: bytes) -> list[bytes | None]:
    keys: list[bytes | None] = []
    start = 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "big", signed=True)
        left = len(data) - start - 4
        if left < 0 or size < _NO_KEY or size > left:
            raise InvalidOptionError(
                f"byte {start} of {path} is not the length of a key: check --keys-format"
            )
        keys.append(None if size == _NO_KEY else data[start + 4 : start + 4 + size])
        start += 4 + max(size, 0)
    return keys


_INCOMPLETE = 3


@click.command(
    "find",
    cls=Command,
    examples=(
        "kts find s3://bucket orders --key-prefix tiered/ --key c3",
        "kts find ./tier --keys-file keys.txt --certificate proof.json --offsets",
    ),
)
@flag("--key", "keys", multiple=True, metavar="TEXT", help="A key in UTF-8.")
@flag("--key-hex", "hex_keys", multiple=True, metavar="HEX", help="A key in hex digits.")
@flag("--no-key", is_flag=True, help="Find records without a key.")
@flag("--keys-file", type=click.Path(dir_okay=False), help="A file of keys.")
@flag(
    "--keys-format",
    type=click.Choice(FORMATS),
    default=LINES,
    show_default=True,
    help="lines: a key per line in UTF-8. hex: in hex digits. length: each key after its length.",
)
@flag("--value-contains", metavar="TEXT", help="Bytes in the value, in UTF-8.")
@flag("--value-matches", metavar="REGEX", help="A regular expression (RE2) for the value.")
@flag("--header", "headers", multiple=True, metavar="NAME[=VALUE]", help="A header.")
@flag("--producer-id", "producer_ids", multiple=True, type=int, help="A producer.")
@flag(
    "--partitioner-pruning",
    is_flag=True,
    help="Search only partitions to which Kafka's default partitioner writes the keys.",
)
@flag(
    "--num-partitions",
    type=Integer(min=1),
    help="Partitions of a topic, for --partitioner-pruning. Default: those in the tier.",
)
@flag("--key-index", metavar="FOLDER", help="Skip segments with an index of kts index.")
@flag("--secret-file", type=click.Path(dir_okay=False), help="The secret of the index of keys.")
@topic_option_flag(help="Option of one topic, such as orders:value.format=json. Repeatable.")
@flag("--offsets", is_flag=True, help="Print only topic, partition and offset.")
@flag("--certificate", type=click.Path(dir_okay=False), help="Write the certificate as JSON.")
@flag("--json", is_flag=True, help="One JSON object per record, the default.", expose_value=False)
@flag("--threads", type=Integer(min=1), help="Default: the number of cores.")
@scan_options("path", "topic", essential=(*PLACES, "where", "columns"), every_topic=True)
def find_command(
    options: Mapping[str, str],
    *,
    certificate: str | None,
    threads: int | None,
    offsets: bool,
    topic_options: tuple[str, ...],
    **flags: Any,  # noqa: ANN401  # texts, flags and numbers
) -> None:
    """Print all records that match, and certify what was searched."""
    by_topic = parse_topic_options(topic_options)
    names = {name.lower() for each in (options, *by_topic.values()) for name in each}
    if offsets:
        if "columns" in names:
            raise InvalidOptionError("--offsets and --columns both select columns: remove one")
        options = {**options, "columns": "topic,partition,offset"}
    if certificate is not None:
        check_output(certificate)
    conditions = _conditions(flags)
    if "where" not in names and all(value in (False, (), []) for value in conditions.values()):
        raise InvalidOptionError(
            "the search has no condition: set --key, --value-contains, --header, --producer-id or"
            " --where"
        )
    _silence_planning()
    search = find(options, topic_options=by_topic, **conditions)
    writer = JsonLines() if offsets or "columns" in names else _FoundRecords()
    if certificate is not None:
        remove_file(certificate)  # an older certificate does not hold for this output
    with progress_bar("searched", is_shown=not sys.stdout.isatty()) as update:
        progress = lambda read, total: update(completed=read, total=total)  # noqa: E731
        with closing(search.batches(threads=threads, progress=progress)) as batches:
            for batch in batches:
                writer.write(batch)
    sys.stdout.flush()
    proof = search.certificate
    if certificate is not None:
        write_atomically(certificate, proof.to_json() + "\n")
    _print_certificate(proof)
    click.get_current_context().exit(0 if proof.complete else _INCOMPLETE)


def _silence_planning() -> None:
    """Hides warnings of planning until the command ends, because the certificate lists the same
    faults. With `--verbose`, they are shown.
    """
    planning = logging.getLogger("kts_source.planning")
    if not planning.isEnabledFor(logging.INFO):
        planning.setLevel(logging.ERROR)
        click.get_current_context().call_on_close(partial(planning.setLevel, logging.NOTSET))


class _FoundRecords:
    """Writes one line of JSON for each record. Keys and values that cannot be decoded are written
    as they are stored, with the reason.
    """

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the records of a batch, which has columns with errors and stored bytes."""
        for record in json_records(batch):
            for name, error_name in ERROR_COLUMNS.items():
                stored = {
                    each.replace(RAW_COLUMNS[name], name): record.pop(each)
                    for each in (RAW_COLUMNS[name], f"{RAW_COLUMNS[name]}Base64")
                    if each in record
                }
                if record.get(error_name) is not None:
                    del record[name]
                    record |= stored
                else:
                    record.pop(error_name, None)
            sys.stdout.buffer.write(json_text(record).encode() + b"\n")


def _conditions(flags: dict[str, Any]) -> Conditions:
    keys: list[bytes | None] = [_utf8(key, "--key") for key in flags.pop("keys")]
    keys += [from_hex(text, "--key-hex") for text in flags.pop("hex_keys")]
    if flags.pop("no_key"):
        keys.append(None)
    file, form = flags.pop("keys_file"), flags.pop("keys_format")
    if file is not None:
        keys += read_keys(file, form)
    secret_file = flags.pop("secret_file")
    if secret_file is not None and flags["key_index"] is None:
        raise InvalidOptionError("--secret-file needs --key-index")
    text = flags["value_contains"]
    flags |= {
        "keys": keys or None,
        "value_contains": None if text is None else _utf8(text, "--value-contains"),
        "headers": _headers(flags["headers"]),
        "key_index_secret": read_secret(secret_file),
    }
    conditions: Conditions = {  # type: ignore[assignment]
        name: value for name, value in flags.items() if value is not None
    }
    return conditions


def _headers(texts: Sequence[str]) -> list[str | tuple[str, bytes]]:
    headers: list[str | tuple[str, bytes]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        _utf8(name, "--header")
        headers.append((name, _utf8(value, "--header")) if equals else name)
    return headers


def _utf8(text: str, flag: str) -> bytes:
    """Encodes an argument as UTF-8. Raises `InvalidOptionError` if the bytes of the argument on the
    command line were not UTF-8. `flag` names the argument in the error text.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        hint = ": use --key-hex" if flag == "--key" else ""
        raise InvalidOptionError(f"{flag} is not in UTF-8{hint}") from None


def _unread_text(ranges: list[UnreadRange]) -> str:
    """Returns a message about the unread ranges of one object. Reports the first of many ranges."""
    first = ranges[0]
    is_named = first.object is None or first.object in first.reason
    text = f"offsets [{first.start}, {first.stop}): {first.reason}"
    text += "" if is_named else f" ({first.object})"
    if len(ranges) == 1:
        return text
    offsets = sum(unread.stop - unread.start for unread in ranges)
    return (
        f"{offsets:,} offsets in {len(ranges):,} ranges of one segment, up to offset"
        f" {ranges[-1].stop - 1}; --certificate lists all. The first: {text}"
    )


def _print_certificate(proof: Certificate) -> None:
    """Prints the certificate to stderr, because the records are on standard output."""
    lines = [f"NOT SEARCHED: {fault}" for fault in proof.faults]
    lines += [f"not part of the search: {text}" for text in proof.outside]
    for partition in proof.partitions:
        name = f"{partition.topic}-{partition.partition}"
        lines += [
            f"NOT SEARCHED: {name}, {_unread_text(list(ranges))}"
            for _, ranges in groupby(partition.unread, key=lambda each: each.object or id(each))
        ]
        lines += [
            f"{name}: not searched, because outside of the log: {', '.join(unserved.objects)}:"
            f" {unserved.reason}"
            for unserved in partition.unserved
        ]
    lines.append(
        f"{proof.matches:,} records of {proof.records:,} in {len(proof.partitions)} partitions;"
        f" {format_bytes(proof.bytes)} in {proof.requests:,} requests; {proof.isolation_level}"
    )
    lines.append("complete" if proof.complete else "NOT COMPLETE: there may be other records")
    for line in lines:
        echo_printable(line, err=True)


@click.command(
    "index",
    cls=Command,
    examples=("kts index s3://bucket orders --key-prefix tiered/ --to key-index",),
)
@flag(
    "--to",
    "folder",
    required=True,
    metavar="FOLDER",
    help="Folder for the index, outside the tier.",
)
@flag(
    "--secret-file",
    type=click.Path(dir_okay=False),
    help="A file of 16 to 64 bytes with the secret for hashing keys. Encrypted topics need one.",
)
@json_flag
@scan_options("path", "topic", every_topic=True)
def index_command(
    options: Mapping[str, str], *, folder: str, secret_file: str | None, as_json: bool
) -> None:
    """Write filters of keys, so that searches read fewer segments."""
    report = index_keys(options, folder, secret=read_secret(secret_file))
    for key, reason in report.left_out:
        echo_printable(f"no filter: {key}: {reason}", err=True)
    if as_json:
        print_json(json_fields(report))
    else:
        click.echo(
            f"{report.segments:,} segments have filters, {report.read:,} of them were read;"
            f" {format_bytes(report.bytes)}"
        )
    click.get_current_context().exit(1 if report.left_out else 0)


def read_secret(path: str | None) -> bytes | None:
    """Returns the contents of a file; `None` if `path` is `None`. Raises `InvalidOptionError` if
    the file cannot be read.
    """
    return None if path is None else _read_file(path)
