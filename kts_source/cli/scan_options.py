"""The options of the data source, as options of a command."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.errors import InvalidOptionError
from kts_source.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.options import Option

_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")

json_flag = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


def scan_options(
    *places: str,
    every_topic: bool = False,
    by_option_only: tuple[str, ...] = (),
    bare: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds every option of the data source to a command, and `-o` for those that come in families.

    The command gets those that were given as its first argument.

    Args:
        places: Of `path` and `topic`, those that are arguments, too.
        every_topic: Whether all topics are selected where none is named.
        by_option_only: Those that only `-o` gives, as the command has a flag of that name.
        bare: The command's parameter that `-o` gives where its text has no `=`.
    """
    flags = [option for option in OPTIONS if option.name not in by_option_only]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(
            dotted: tuple[str, ...],
            given_path: str | None = None,
            given_topic: str | None = None,
            **values: Any,  # noqa: ANN401  # texts, flags and numbers
        ) -> None:
            named = {option.name: values.pop(_variable(option)) for option in flags}
            options = {name: text for name, text in named.items() if text is not None}
            add_places(options, given_path, given_topic)
            for pair in dotted:
                name, equals, text = pair.partition("=")
                if not equals and bare is not None and values[bare] is None:
                    values[bare] = pair
                    continue
                if not equals:
                    raise InvalidOptionError(f"-o takes NAME=VALUE, not {pair!r}")
                options[name] = text
            if every_topic and not any(name in options for name in _SELECTIONS):
                options["subscribePattern"] = ".*"
            command(options, **values)

        found = click.option(
            "-o",
            "--option",
            "dotted",
            multiple=True,
            metavar="NAME=VALUE",
            help="Any option of the data source, such as s3.endpoint=… or encryption.key.pairs.….",
        )(run)
        for option in reversed(flags):
            text = option.doc.replace("`", "")
            flag = f"--{option.name}", _variable(option)
            found = click.option(*flag, metavar="TEXT", help=text)(found)
        for name in reversed(places):
            found = click.argument(f"given_{name}", metavar=f"[{name.upper()}]", required=False)(
                found
            )
        return found

    return decorate


def _variable(option: Option) -> str:
    """A name that Python takes for an option's."""
    return re.sub(r"\W", "_", option.name)


def add_places(options: dict[str, str], path: str | None = None, topic: str | None = None) -> None:
    """Adds the arguments PATH and TOPIC to the options that they stand for.

    Raises:
        InvalidOptionError: The same twice.
    """
    for option, text in (("path", path), ("subscribe", topic)):
        if text is None:
            continue
        if option in options:
            raise InvalidOptionError(f"{text!r} and --{option} are the same: give one")
        options[option] = text
