"""Flags of commands: their names, types, groups and help texts, and the class of all commands.

The options of the data source become flags in kebab-case: `startingOffsets` is `--starting-offsets`
and `value.format` is `--value-format`. `--help` shows only the essential flags of a command;
`--help-all` shows all flags in groups.
"""

from __future__ import annotations

import re
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from kts_source.broker.kafka_table import PLAIN_OPTIONS, SECURITY_OPTIONS
from kts_source.layout.find_layout import BUILT_IN_LAYOUTS, ENTRY_POINT_GROUP
from kts_source.options import OPTIONS
from kts_source.options.fetch_options import CACHE_OPTIONS, FETCH_OPTIONS
from kts_source.options.parsing import (
    parse_bool,
    parse_byte_size,
    parse_choice,
    parse_int,
    parse_positive_int,
)
from kts_source.options.stream_options import STREAM_OPTIONS
from kts_source.options.times import parse_time
from kts_source.options.value_formats import VALUE_OPTIONS
from kts_source.store.storage_options import S3_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kts_source.options import Option

SERVERS: Final = "kafka.bootstrap.servers"
EXIT_CODES: Final = (
    ("0", "success"),
    ("1", "data, tier or target are corrupt, missing or unreachable"),
    ("2", "the command or an option is invalid"),
    ("3", "offsets that the tier should have are missing"),
    ("4", "records cannot be decoded, or an export rejected more than --max-rejected allows"),
    ("130", "interrupted"),
)


def flag_name(option: str) -> str:
    """Returns the flag of an option of the data source, such as `--key-prefix`."""
    if option == SERVERS:
        return "--bootstrap-servers"
    return "--" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", option).replace(".", "-").lower()


SOURCE_FLAGS: Final[Mapping[str, Option]] = {
    flag_name(option.name): option for option in OPTIONS if option not in STREAM_OPTIONS
}
"""Options of the data source by flag. The options of streams have no flags, because only Spark runs
such streams.
"""

_BY_NAME: Final = {option.name: option for option in SOURCE_FLAGS.values()}
_Function = TypeVar("_Function", bound="Callable[..., Any]")
_BOOLEANS: Final = frozenset(
    option.name for option in SOURCE_FLAGS.values() if option.parse is parse_bool
)
_SHORT_HELP: Final[Mapping[str, str]] = {
    "keyPrefix": "The storage plugin's key.prefix, such as tiered/.",
    "layout": "Layout of the tier, or of brokers' disks (kafka-logs).",
    "startingTimestamp": "First timestamp: 2026-02-25T10:00Z, -1h, or ms since 1970.",
    "endingTimestamp": "Stop before this timestamp.",
    "startingOffsets": 'First offsets: earliest, or {"orders":{"0":23}}.',
    "endingOffsets": 'Stop before these offsets: latest, or {"orders":{"0":50}}.',
    "isolationLevel": "Whether rows of open and aborted transactions are dropped.",
    "columns": "Columns in this order, such as key,value,offset.",
    "where": "SQL condition, such as \"key = 'c3'\".",
    "value.format": "Decode values: json, avro-confluent, … See --help-all.",
    "includeHeaders": "Add the column headers.",
    "subscribe": "Topics, separated by commas.",
    "failOnDataLoss": "Whether missing offsets are an error. If not, they are skipped.",
}
_METAVARS: Final[Mapping[str, str]] = {
    "path": "PATH",
    "where": "SQL",
    "columns": "NAMES",
    "subscribe": "TOPICS",
    "startingOffsets": "OFFSETS",
    "endingOffsets": "OFFSETS",
    "subscribePattern": "REGEX",
    "assign": "JSON",
    "storageOptions": "JSON",
}
_KINDS: Final[Mapping[Callable[..., Any], str]] = {
    parse_int: "N",
    parse_positive_int: "N",
    parse_byte_size: "SIZE",
    parse_time: "TIME",
}


_MAX_CHOICES: Final = 3
"""Maximum number of choices that the short help lists in the name of a value."""


class Flag(click.Option):
    """A flag of a command.

    Args:
        group: Heading of the flag in `--help-all`. Essential flags have no group, and `--help`
            shows only them.
        source: True if the flag sets an option of the data source.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401  # as of `click.Option`
        group: str = "",
        source: bool = False,
        **attributes: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.group = group
        self.is_source = source


flag = partial(click.option, cls=Flag)
"""Decorator that adds a `Flag`."""


class Integer(click.IntRange):
    """An integer with bounds. Its errors and help call it an integer, not an "integer range"."""

    name = "integer"


class ByteSize(click.types.IntParamType):
    """A size in bytes, plain or with a unit, as in options of the data source."""

    name = "size"

    def convert(
        self,
        value: Any,  # noqa: ANN401  # as in click
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Returns the size. Raises `InvalidOptionError` for other texts."""
        flag_name = self.name if param is None else param.opts[0]
        return value if isinstance(value, int) else parse_byte_size(flag_name, value)


class SuggestedText(click.types.StringParamType):
    """A text for which shells suggest values. Other texts are valid, too."""

    def __init__(self, values: Callable[[], Iterable[str]]) -> None:
        self._values = values

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Returns the values that begin with `incomplete`."""
        return [CompletionItem(value) for value in self._values() if value.startswith(incomplete)]


class PathText(click.types.StringParamType):
    """A text for which shells suggest files and folders. Other texts are valid, too."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Lets the shell complete `incomplete` as a path."""
        return [CompletionItem(incomplete, type="file")]


def _layouts() -> list[str]:
    return [*BUILT_IN_LAYOUTS, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))]


def option_names() -> list[str]:
    """Returns `<name>=` for each option, which shells suggest as the start of a value of `-o`."""
    names = [option.name for option in OPTIONS] + [name for name, _ in S3_OPTIONS]
    names += [f"kafka.{name}" for name, *_ in (*PLAIN_OPTIONS, *SECURITY_OPTIONS)]
    return [f"{name}=" for name in names]


_SUGGESTED: Final[Mapping[str, Callable[[], Iterable[str]]]] = {
    "layout": _layouts,
    "columns": lambda: ("key", "value", "topic", "partition", "offset", "timestamp", "headers"),
    "startingOffsets": lambda: ("earliest",),
    "endingOffsets": lambda: ("latest",),
}


def source_flag(option: Option, *, is_essential: bool) -> Callable[[_Function], _Function]:
    """Returns a decorator that adds the flag of an option of the data source."""
    name, variable = flag_name(option.name), variable_of(option.name)
    attributes: dict[str, Any] = {
        "group": "" if is_essential else _group(option),
        "source": True,
        "help": _help(option, is_short=is_essential),
    }
    parse = getattr(option.parse, "func", option.parse)
    if parse is parse_bool:
        return flag(f"{name}/--no-{name[2:]}", variable, default=None, **attributes)
    attributes["metavar"] = _METAVARS.get(option.name, _KINDS.get(parse, "TEXT"))
    if parse is parse_choice:
        choices = option.parse.keywords["choices"]  # type: ignore[attr-defined]
        attributes["type"] = click.Choice(choices, case_sensitive=False)
        attributes["metavar"] = "FORMAT" if is_essential and len(choices) > _MAX_CHOICES else None
    elif option.name in _SUGGESTED:
        attributes["type"] = SuggestedText(_SUGGESTED[option.name])
    elif attributes["metavar"] == "PATH":
        attributes["type"] = PathText()
    if option.name == "layout":
        attributes["metavar"] = f"[{'|'.join(BUILT_IN_LAYOUTS)}|…]"
    return flag(name, variable, **attributes)


def _group(option: Option) -> str:
    groups = (
        (VALUE_OPTIONS, "Keys and values"),
        (FETCH_OPTIONS, "Requests"),
        (CACHE_OPTIONS, "Caches"),
    )
    return next((name for options, name in groups if option in options), "Source and selection")


def _help(option: Option, *, is_short: bool) -> str:
    text = _SHORT_HELP.get(option.name, "") if is_short else ""
    text = text or with_flags(option.doc).replace("`", "")
    return f"{text}  [default: {option.default}]" if option.default else text


def variable_of(name: str) -> str:
    """Returns the name of the command's parameter for an option: the option's name, with `_` in
    place of characters that are invalid in identifiers.
    """
    return "source_" + re.sub(r"\W", "_", name)


_CAMEL: Final = "|".join(
    re.escape(name) for name in sorted(_BY_NAME, key=len, reverse=True) if re.search("[A-Z.]", name)
)
_MENTION: Final = re.compile(
    rf"`(?P<code>[\w.]+)(?:=(?P<text>[\w-]+))?`"
    rf"|\boption '(?P<quoted>[\w.-]+)'"
    rf"|(?<=\bdid you mean )'(?P<meant>[\w.-]+)'"
    rf"|\b(?P<set>layout|path)=(?P<given>[\w-]+)"
    rf"|(?<![\w.$-])'?(?P<camel>{_CAMEL}|kafka\.bootstrap\.servers)'?(?:=(?P<value>[\w-]+))?(?![\w.])"
)


_FLAG_OF_ARGUMENT: Final[Mapping[str, str]] = {
    **{
        name: "--" + name.replace("_", "-")
        for name in (
            *("table_format", "partition_by", "sort_within_files", "target_file_bytes"),
            *("row_group_rows", "compression", "export_id", "second_copy", "commit_bytes"),
            *("dead_letters", "max_rejected", "compact", "tombstones", "delete_retention_ms"),
            *("follow", "interval", "round_bytes", "schema_evolution", "on_new_fields"),
            *("text_partitions", "verify", "dry_run"),
        )
    },
    "topic_options": "--topic-option",
    "resume": "--no-resume",
    "replay": "--replay-dead-letters",
}
"""Maps arguments of `backfill` to the flags of `kts export`."""
_ARGUMENT: Final = re.compile(
    rf"(?<![\w./$-])(?P<name>{'|'.join(_FLAG_OF_ARGUMENT)})"
    r"(?:=(?P<quote>['\"]?)(?P<value>[\w-]+|…)(?P=quote)|(?![\w./=-]))"
)


def _argument_flag(match: re.Match[str]) -> str:
    value, flag = match["value"], _FLAG_OF_ARGUMENT[match["name"]]
    if value is None and "_" not in match["name"]:  # a plain word, such as "verify"
        return match[0]
    return flag if value in (None, "…", "True", "False") else f"{flag} {value}"


def with_flags(text: str) -> str:
    """Returns a text in which names of options are replaced by their flags: `keyPrefix` by
    `--key-prefix`, and `failOnDataLoss=false` by `--no-fail-on-data-loss`. Also replaces arguments
    of an export, such as `second_copy=True`.
    """

    def replaced(match: re.Match[str]) -> str:
        name = match["code"] or match["quoted"] or match["meant"] or match["set"] or match["camel"]
        if name not in _BY_NAME and name != SERVERS:
            return match[0]
        value, flag = match["text"] or match["given"] or match["value"], flag_name(name)
        if value and name in _BOOLEANS:
            flag = flag if value == "true" else f"--no-{flag[2:]}"
        elif value:
            flag += f" {value}"
        return f"option {flag}" if match["quoted"] else flag

    return _ARGUMENT.sub(_argument_flag, _MENTION.sub(replaced, text))


class Command(click.Command):
    """A command whose help has two pages.

    Args:
        examples: Command lines that the help shows.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401  # as of `click.Command`
        examples: Sequence[str] = (),
        **attributes: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = examples
        self.params += [
            click.Option(
                ["--help-all"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_show_all,
                help="Show all flags and exit.",
            )
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments. Suggests the flag if an argument is the name of an option."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").lower()
            for option in OPTIONS:
                if option.name.lower() == name:
                    known = flag_name(option.name) if option.name in _BY_NAME else ""
                    hint = known or f"-o {option.name}=…"
                    raise click.UsageError(
                        f"No such option {error.option_name!r}: did you mean {hint}?", ctx
                    ) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the flags, examples and exit codes."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        shows_all = bool(ctx.meta.get(_ALL))
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):  # the usage shows it
                continue
            record = parameter.get_help_record(ctx)
            group = getattr(parameter, "group", "")
            if record is not None and (shows_all or not group):
                groups.setdefault(group or "Options", []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=26)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  {example}\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the exit codes."""
        write_exit_codes(formatter)


def write_exit_codes(formatter: click.HelpFormatter) -> None:
    """Writes the exit codes of all commands."""
    with formatter.section("Exit codes"):
        formatter.write_dl(EXIT_CODES)


_ALL: Final = f"{__name__}.all"


def _show_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
