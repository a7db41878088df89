"""The `kafka.*` options of one `load()` as `BrokerSettings`.

No error shows a value: passwords get into the wrong options.
"""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING, Final

from kts_source.broker.kafka_table import COUNTED, NEEDS_KAFKA, PREFIX, refusal
from kts_source.broker.security_options import security_from
from kts_source.broker.settings import MAX_FETCH_BYTES, BrokerSettings
from kts_source.errors import InvalidOptionError
from kts_source.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOTSTRAP: Final = "bootstrap.servers"
_SERVER: Final = re.compile(
    r"(?:(?P<protocol>[A-Za-z][\w+.-]*)://)?"
    r"(?:\[(?P<ip6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[\w.-]+)):(?P<port>[0-9]{1,5})"
)
_MAX_INT32: Final = (1 << 31) - 1
_MAX_NAME: Final = 249


def broker_settings(
    kafka_texts: Mapping[str, str],
) -> tuple[BrokerSettings | None, tuple[str, ...]]:
    """What the options say of brokers. Files that they name are read here.

    Args:
        kafka_texts: Name in lower case, `kafka.` included, to text.

    Returns:
        The settings, `None` without `kafka.bootstrap.servers`; and the names, sorted, that have no
        effect.

    Raises:
        InvalidOptionError: An option that is malformed, cannot be honoured or lacks another; a file
            that cannot be opened.
    """
    given = {name.removeprefix(PREFIX): text for name, text in kafka_texts.items()}
    if _BOOTSTRAP not in given:
        return None, tuple(sorted(kafka_texts))
    for name in sorted(given):
        if reason := refusal(name):
            raise InvalidOptionError(f"option '{PREFIX}{name}' is not supported: {reason}")
        _check_characters(name, given[name])
    if importlib.util.find_spec("kafka") is None:  # which takes long to import
        raise InvalidOptionError(NEEDS_KAFKA)
    security, idle = security_from(given)
    settings = BrokerSettings(
        bootstrap=_servers(given[_BOOTSTRAP], security.protocol),
        security=Secret(security),
        client_id=_name(given, "client.id", "tiered-kafka"),
        rack=_name(given, "client.rack", ""),
        request_timeout_seconds=_number(given, "request.timeout.ms", 30_000) / 1000,
        connect_timeout_seconds=_number(given, "socket.connection.setup.timeout.ms", 10_000) / 1000,
        fetch_max_wait_ms=_number(given, "fetch.max.wait.ms", 500, least=0),
        fetch_min_bytes=_number(given, "fetch.min.bytes", 1, least=0),
        fetch_max_bytes=min(_number(given, "fetch.max.bytes", 50 << 20), MAX_FETCH_BYTES),
        partition_fetch_bytes=min(
            _number(given, "max.partition.fetch.bytes", 8 << 20), MAX_FETCH_BYTES
        ),
    )
    if settings.fetch_max_wait_ms >= settings.request_timeout_seconds * 1000:
        raise InvalidOptionError(
            "option 'kafka.fetch.max.wait.ms' must be less than kafka.request.timeout.ms"
        )
    ignored = {PREFIX + name for name in given if name not in COUNTED or name in idle}
    return settings, tuple(sorted(ignored))


def _servers(text: str, protocol: str) -> tuple[tuple[str, int], ...]:
    found: dict[tuple[str, int], None] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        match = _SERVER.fullmatch(part)
        port = int(match["port"]) if match else 0
        if match is None or not 0 < port <= 65_535:
            raise InvalidOptionError(
                f"option '{PREFIX}{_BOOTSTRAP}' must be like host:9092,[::1]:9092; its entry"
                f" {len(found) + 1} is not"
            )
        if match["protocol"] and match["protocol"].upper() != protocol:
            raise InvalidOptionError(
                f"option '{PREFIX}{_BOOTSTRAP}' has another protocol before :// than"
                f" kafka.security.protocol, which is {protocol}"
            )
        found[(match["ip6"] or match["host"], port)] = None
    if not found:
        raise InvalidOptionError(f"option '{PREFIX}{_BOOTSTRAP}' names no broker")
    return tuple(found)


def _number(given: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    text = given.get(name, str(default)).strip()
    if not re.fullmatch(r"\+?[0-9]{1,10}", text) or not least <= int(text) <= _MAX_INT32:
        raise InvalidOptionError(
            f"option '{PREFIX}{name}' must be a whole number from {least} to {_MAX_INT32}"
        )
    return int(text)


def _name(given: Mapping[str, str], name: str, default: str) -> str:
    text = given.get(name, default)
    if len(text) > _MAX_NAME or not text.isprintable():
        raise InvalidOptionError(
            f"option '{PREFIX}{name}' must be at most {_MAX_NAME} printable characters"
        )
    return text


def _check_characters(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidOptionError(f"option '{PREFIX}{name}' has half a character") from None
    if "\0" in text:
        raise InvalidOptionError(f"option '{PREFIX}{name}' has a zero byte")
