"""Adds the options of the data source to commands."""

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

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def scan_options(
    *arguments: str,
    every_topic: bool = False,
    by_option_only: tuple[str, ...] = (),
    bare: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that adds a flag for each option of the data source, and `-o NAME=VALUE`.

    The first argument of the command is a dict of the options that the user set.

    Args:
        arguments: Any of `path` and `topic`. Users may also pass these without a flag.
        every_topic: If True, the command selects all topics by default.
        by_option_only: Options without an own flag, because the command has a flag with this name.
        bare: Name of a parameter of the command. It gets the text after `-o` if it contains no `=`.
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
            add_location(options, given_path, given_topic)
            for pair in dotted:
                name, equals, text = pair.partition("=")
                if not equals and bare is not None and values[bare] is None:
                    values[bare] = pair
                    continue
                if not equals:
                    raise InvalidOptionError(f"-o {pair!r} has no value: use -o NAME=VALUE")
                options[name] = text
            if every_topic and not any(name in options for name in _SELECTIONS):
                options["subscribePattern"] = ".*"
            command(options, **values)

        run = click.option(
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
            run = click.option(*flag, metavar="TEXT", help=text)(run)
        for name in reversed(arguments):
            metavar = f"[{name.upper()}]"
            run = click.argument(f"given_{name}", metavar=metavar, required=False)(run)
        return run

    return decorate


def _variable(option: Option) -> str:
    """Returns the name of an option as a Python identifier. Characters that are not allowed become
    `_`.
    """
    return re.sub(r"\W", "_", option.name)


def add_location(
    options: dict[str, str], path: str | None = None, topic: str | None = None
) -> None:
    """Sets the options `path` and `subscribe` to the values of the arguments PATH and TOPIC, if the
    user passed them.

    Raises:
        InvalidOptionError: An argument and its option are both set.
    """
    for option, text in (("path", path), ("subscribe", topic)):
        if text is None:
            continue
        if option in options:
            raise InvalidOptionError(f"argument {text!r} and --{option} are both given: remove one")
        options[option] = text
