"""Adds the arguments PATH and TOPIC and the options of the data source to commands.

Environment variables and profiles set options that no flag sets.

`KTS_KEY_PREFIX` sets the option of the flag `--key-prefix`, and so on. A profile is a table of the
file `tiered-kafka/config.toml` in `$XDG_CONFIG_HOME` (by default `~/.config`):

    [default]
    path = "s3://bucket"
    key-prefix = "tiered/"
    s3.region = "eu-central-1"

Flags override the environment, and the environment overrides the profile.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import re
import stat
import tomllib
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.cli.flags import (
    SERVERS,
    SOURCE_FLAGS,
    PathText,
    SuggestedText,
    flag,
    flag_name,
    option_names,
    source_flag,
    variable_of,
    with_flags,
)
from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.options import parse_any_options
from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet


log = logging.getLogger(__name__)

DEFAULT_PROFILE: Final = "default"
_PROFILE_VARIABLE: Final = "KTS_PROFILE"
_OPTION_OF_FLAG: Final[Mapping[str, str]] = {
    **{flag: option.name for flag, option in SOURCE_FLAGS.items()},
    flag_name(SERVERS): SERVERS,
}
_OPTION_OF_VARIABLE: Final[Mapping[str, str]] = {
    "KTS_" + flag[2:].upper().replace("-", "_"): name for flag, name in _OPTION_OF_FLAG.items()
}
_EXCLUSIVE: Final = (
    ("subscribe", "subscribePattern", "assign"),
    ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
)
_CREDENTIAL: Final = re.compile(
    r"secret|password|token|credential|jaas|user\.info|access-key|storageOptions|keystore\.key"
    r"|storage-options|user-info",
    re.IGNORECASE,
)


def with_defaults(options: Mapping[str, str], profile: str | None) -> dict[str, str]:
    """Returns `options`, with added options from the environment and from the profile.

    An option is not added if `options` contain it, or contain an alternative to it. For example,
    `subscribe` is not added to options with `assign`.

    Args:
        options: Options that the user set by flags.
        profile: Name of the profile; `None` = the one in `KTS_PROFILE`, or `default` if it exists.

    Raises:
        InvalidOptionError: The profile does not exist or is invalid, or other users can read the
            credentials in it.
    """
    merged = dict(options)
    for layer in (_from_environment(), _from_profile(profile)):
        added = {name: text for name, text in layer.items() if name not in merged}
        for names in _EXCLUSIVE:
            if any(name in merged for name in names):
                added = {name: text for name, text in added.items() if name not in names}
        merged |= added
    return merged


def profile_names() -> list[str]:
    """Returns the names of all profiles; none if the file cannot be read."""
    try:
        return list(_read(_file()))
    except InvalidOptionError:
        return []


def _from_environment() -> dict[str, str]:
    return {
        option: os.environ[variable]
        for variable, option in _OPTION_OF_VARIABLE.items()
        if os.environ.get(variable)
    }


def _file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "tiered-kafka" / "config.toml"


def _from_profile(name: str | None) -> dict[str, str]:
    file = _file()
    profiles = _read(file)
    wanted = name or os.environ.get(_PROFILE_VARIABLE) or DEFAULT_PROFILE
    if wanted not in profiles:
        if wanted == DEFAULT_PROFILE and name is None:
            return {}
        known = ", ".join(profiles) or "none"
        raise InvalidOptionError(
            f"profile {wanted!r} does not exist in {file}; existing profiles: {known}. Add a table"
            f" [{wanted}] to the file"
        )
    options: dict[str, str] = {}
    for key, value in _settings(profiles[wanted]):
        options[_option_name(key, file, wanted)] = _value_text(key, value, file, wanted)
    secret = next((key for key in options if _CREDENTIAL.search(key)), None)
    if secret is not None and _is_shared(file):
        raise InvalidOptionError(
            f"{file} contains the credential {secret}, and other users can read the file:"
            f" run chmod 600 {file}"
        )
    return options


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidOptionError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:  # of TOML or of UTF-8, without values
        position = re.search(r"\(at [^)]*\)$", str(error))
        raise InvalidOptionError(
            f"{file} is not valid TOML {position[0] if position else '(not UTF-8)'}"
        ) from None
    for key, value in document.items():
        if not isinstance(value, dict):
            raise InvalidOptionError(
                f"{file}: {key!r} is outside of a profile: write [{DEFAULT_PROFILE}] above it"
            )
    return document


def _settings(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields names and values of a table, including nested tables: TOML parses `s3.region = …` as a
    table `s3`.
    """
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _option_name(key: str, file: Path, profile: str) -> str:
    if (option := _OPTION_OF_FLAG.get(f"--{key}")) is not None:
        return option
    if "." in key or key in _OPTION_OF_FLAG.values():
        return key
    near = difflib.get_close_matches(f"--{key}", _OPTION_OF_FLAG, n=1)
    hint = f": did you mean {near[0][2:]}?" if near else ". Profiles set options of the data source"
    raise InvalidOptionError(f"{file}, profile {profile!r}: unknown setting {key!r}{hint}")


def _value_text(key: str, value: object, file: Path, profile: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if not isinstance(value, str | int):
        raise InvalidOptionError(
            f"{file}, profile {profile!r}: {key!r} must be a text, a whole number, true, false or a"
            " list of texts"
        )
    return str(value)


def _is_shared(file: Path) -> bool:
    """Returns whether users other than the owner can read a file."""
    return os.name == "posix" and bool(file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


PLACES: Final = ("keyPrefix", "layout")
"""Essential options of commands that read only metadata."""
RECORDS: Final = (
    *PLACES,
    *("startingTimestamp", "endingTimestamp", "where", "columns"),
    *("value.format", "includeHeaders"),
)
"""Essential options of commands that read records."""
SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")

json_flag = flag("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
topic_option_flag = partial(
    flag, "--topic-option", "topic_options", multiple=True, metavar="TOPIC:NAME=VALUE"
)


def parse_topic_options(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the options by topic and name. The texts have the form `TOPIC:NAME=VALUE`. Raises
    `InvalidOptionError` for other texts.
    """
    by_topic: dict[str, dict[str, str]] = {}
    for text in texts:
        topic, colon, pair = text.partition(":")
        name, equals, value = pair.partition("=")
        if not colon or not equals:
            raise InvalidOptionError(
                f"--topic-option {text!r} is invalid: it must be TOPIC:NAME=VALUE"
            )
        by_topic.setdefault(topic, {})[name] = value
    return by_topic


def scan_options(
    *arguments: str,
    essential: Sequence[str] = PLACES,
    every_topic: bool = False,
    by_option_only: Sequence[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that adds a flag for each option of the data source, and the flags that
    all commands have: `-o`, `--profile` and `--verbose`.

    The first argument of the command is a dict of the options that the user set: by arguments and
    flags, by the environment, or in the profile.

    Args:
        arguments: The positional arguments in order, from `path`, `topic` and `target`. Only
            `target` is passed to the command as a parameter.
        essential: Names of options that `--help` shows.
        every_topic: If True, the command selects all topics by default.
        by_option_only: Options without a flag here: the command defines its own, or refuses them.
    """
    flags = [option for option in SOURCE_FLAGS.values() if option.name not in by_option_only]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(
            pairs: tuple[str, ...],
            profile: str | None,
            verbose: bool,  # passed by name
            servers: str | None = None,
            given: tuple[str, ...] = (),
            **values: Any,  # noqa: ANN401  # texts, flags and numbers
        ) -> None:
            _log_to_stderr(verbose=verbose)
            named = {option.name: values.pop(variable_of(option.name)) for option in flags}
            named[SERVERS] = servers
            options = {name: _text(value) for name, value in named.items() if value is not None}
            options |= dict(map(_pair, pairs))
            if "target" in arguments:
                *given, values["target"] = given  # type: ignore[assignment]
            _add_arguments(options, given, profile, takes_topic="topic" in arguments)
            set_here = frozenset(options)
            options = with_defaults(options, profile)
            if every_topic and not any(name in options for name in SELECTIONS):
                options["subscribePattern"] = ".*"
            with _failure_logged(verbose=verbose), _default_named(set_here, profile):
                if "topic" in arguments and "target" not in arguments:
                    require_topic(options)
                command(options, **values)

        decorated: Callable[..., None] = run
        common = _COMMON if SERVERS in by_option_only else (*_COMMON, _SERVERS_FLAG)
        for decorator in common:
            decorated = decorator(decorated)
        # Each decorator adds its flag before the existing ones.
        for option in sorted(flags, key=lambda option: _rank(option.name, essential))[::-1]:
            decorated = source_flag(option, is_essential=option.name in essential)(decorated)
        if arguments:
            decorated = _positional(arguments)(decorated)
        return decorated

    return decorate


def _rank(name: str, essential: Sequence[str]) -> int:
    return essential.index(name) if name in essential else len(essential)


def _positional(arguments: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    required = "target" in arguments
    metavar = " ".join(
        name.upper() if name == "target" else f"[{name.upper()}]" for name in arguments
    )
    return click.argument("given", nargs=-1, required=required, metavar=metavar, type=PathText())


_COMMON: Final = (
    flag("-v", "--verbose", is_flag=True, help="Also print log lines of level INFO, with times."),
    flag(
        "--profile",
        metavar="NAME",
        type=SuggestedText(profile_names),
        help="Profile of the configuration file.  [default: default]",
    ),
    flag(
        "-o",
        "--option",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        type=SuggestedText(option_names),
        help="Any option of the data source, such as s3.endpoint=…",
    ),
)
"""Flags of all commands, last one first."""
_SERVERS_FLAG: Final = flag(
    "-b",
    flag_name(SERVERS),
    "servers",
    metavar="HOST:PORT,…",
    help="Brokers of the cluster, to include its newest records.",
)


def _text(value: str | bool) -> str:  # value of a flag
    return value if isinstance(value, str) else str(value).lower()


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidOptionError(f"-o {text!r} has no value: use -o NAME=VALUE")
    return name, value


def _add_arguments(
    options: dict[str, str], given: Sequence[str], profile: str | None, *, takes_topic: bool
) -> None:
    """Sets the options `path` and `subscribe` to the values of the arguments PATH and TOPIC. A
    single argument is the topic if it cannot be a path or if the path is already known.

    Raises `InvalidOptionError` if an argument and its option are both set or if a single argument
    is neither the topic nor an existing path, and `UsageError` for too many arguments.
    """
    names = ("path", "subscribe") if takes_topic else ("path",)
    if len(given) > len(names):
        hint = ". Separate topics by commas, without spaces" if takes_topic else ""
        raise click.UsageError(f"Got unexpected extra argument ({given[len(names)]}){hint}")
    if takes_topic and given:
        may_be_topic = _is_topic(given[0], with_defaults(options, profile))
        if may_be_topic and len(given) == 1:
            names = ("subscribe",)
        elif _is_missing_folder(given[0]) and (may_be_topic or len(given) == 1):
            hint = (
                "If it is the topic, set PATH before it, or set --path or KTS_PATH"
                if len(given) == 1
                else f"Separate topics by commas, without spaces: {','.join(given)}"
            )
            raise InvalidOptionError(
                f"argument {given[0]!r} is taken as PATH, but no such folder exists. {hint}"
            )
    for option, text in zip(names, given, strict=False):
        if option in options:
            raise InvalidOptionError(
                f"argument {text!r} and {flag_name(option)} are both given: remove one"
            )
        options[option] = text


def _is_topic(text: str, options: Mapping[str, str]) -> bool:
    if "/" in text or text in (".", "..") or any(name in options for name in SELECTIONS):
        return False
    return "path" in options or SERVERS in options


def _is_missing_folder(text: str) -> bool:
    """Returns True if a name without slashes and colons names no existing file or folder."""
    if "/" in text or ":" in text:
        return False
    return not any(Path(path).expanduser().exists() for path in (text, *text.split(",")))


def require_topic(options: Mapping[str, str], target: str | None = None) -> None:
    """Checks that the options select topics.

    Args:
        options: Options of the command.
        target: The last argument, if the command has a TARGET.

    Raises:
        InvalidOptionError: TOPIC is missing. The message lists the topics of the tier.
        TieredKafkaError: TOPIC is missing, and its topics cannot be listed for the message.
    """
    if any(name in options for name in SELECTIONS):
        return
    from kts_source.planning.describe import topics_of_tier

    parsed = parse_any_options({**options, "subscribePattern": ".*"})
    topics = topics_of_tier(parsed) if parsed.path else ()
    listed = f"; topics of this tier: {', '.join(topics)}" if topics else ""
    taken = "" if target is None else f" ({target!r} is taken as TARGET)"
    raise InvalidOptionError(f"TOPIC is missing{taken}{listed}")


class _Printable(logging.Formatter):
    """Replaces names of options by flags in log messages, and escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the message of a record as printable text."""
        return printable(with_flags(super().format(record)))


@contextmanager
def _failure_logged(*, verbose: bool) -> Iterator[None]:
    """Logs the class of an error if `verbose` is set, because the text that the command prints at
    its end has no time.
    """
    try:
        yield
    except TieredKafkaError as error:
        if verbose:
            log.error("the command failed: %s", type(error).__name__)
        raise


@contextmanager
def _default_named(set_here: AbstractSet[str], profile: str | None) -> Iterator[None]:
    """Appends to an error of an option the environment variable or the profile that sets it.

    Args:
        set_here: Options that the command line sets.
        profile: As for `with_defaults`.
    """
    try:
        yield
    except InvalidOptionError as error:
        for variable, name in _OPTION_OF_VARIABLE.items():
            if name in set_here or f"option {name!r}" not in error.message:
                continue
            if os.environ.get(variable):
                raise error.extended(f". {variable} in the environment sets it") from None
            if name in _from_profile(profile):
                raise error.extended(f". The profile in {_file()} sets it") from None
        raise


def _log_to_stderr(*, verbose: bool) -> None:
    """Prints warnings while the current command runs. If `verbose` is set, also prints lines of
    level INFO, and begins every line with its time and level.
    """
    ours = logging.getLogger("kts_source")
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO if verbose else logging.WARNING)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else "%(message)s"
    handler.setFormatter(_Printable(form))
    ours.addHandler(handler)
    level = ours.level
    if verbose:
        ours.setLevel(logging.INFO)

    def restore() -> None:
        ours.removeHandler(handler)
        ours.setLevel(level)

    click.get_current_context().call_on_close(restore)
