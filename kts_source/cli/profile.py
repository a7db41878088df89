"""Settings that commands use if no flag sets them: environment variables and profiles.

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
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kts_source.cli.flags import SERVERS, SOURCE_FLAGS, flag_name
from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    """Returns the options, and options of the environment and the profile that they lack.

    An option is not added if `options` contain another option with the same purpose. For example,
    `assign` replaces `subscribe`.

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
        options[_option_name(key, file, wanted)] = _text(key, value, file, wanted)
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
    """Yields names and values of a table. `s3.region = …` is a table `s3` in TOML."""
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
    hint = f": did you mean {near[0][2:]}?" if near else ""
    raise InvalidOptionError(f"{file}, profile {profile!r}: unknown setting {key!r}{hint}")


def _text(key: str, value: object, file: Path, profile: str) -> str:
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
