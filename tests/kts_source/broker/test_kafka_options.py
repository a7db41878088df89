"""Tests `kafka.*` options: each documented option is parsed, ignored, or rejected with an error
that names it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from kts_source.broker.kafka_options import broker_settings
from kts_source.broker.kafka_table import (
    COUNTED,
    PLAIN_OPTIONS,
    REFUSED,
    SECURITY_OPTIONS,
    WITHOUT_EFFECT,
)
from kts_source.broker.settings import BrokerSettings, Security
from kts_source.errors import InvalidOptionError, MissingExtraError
from tools.update_docs import kafka_tables

SERVERS = {"kafka.bootstrap.servers": "broker:9092"}


def parse_settings(**changes: str) -> BrokerSettings:
    """Parses the options in `changes` together with `bootstrap.servers`.

    In the names of `changes`, `__` stands for a dot.
    """
    parsed, _ = broker_settings(SERVERS | prefix_options(changes))
    assert parsed is not None
    return parsed


def prefix_options(changes: dict[str, str]) -> dict[str, str]:
    return {f"kafka.{name.replace('__', '.')}": text for name, text in changes.items()}


def refusal_message(**changes: str) -> str:
    with pytest.raises(InvalidOptionError) as caught:
        broker_settings(SERVERS | prefix_options(changes))
    return str(caught.value)


def test_kafka_options_without_servers_are_ignored() -> None:
    options = {"kafka.ssl.engine.factory.class": "x", "kafka.security.protocol": "nonsense"}
    assert broker_settings(options) == (None, tuple(sorted(options)))
    assert broker_settings({}) == (None, ())


def test_default_broker_settings_equal_defaults_in_plain_options() -> None:
    parsed = parse_settings()
    assert parsed.bootstrap == (("broker", 9092),)
    assert parsed.security.reveal() == Security("PLAINTEXT")
    defaults = {
        "client.id": parsed.client_id,
        "client.rack": parsed.rack,
        "request.timeout.ms": f"{parsed.request_timeout_seconds * 1000:.0f}",
        "socket.connection.setup.timeout.ms": f"{parsed.connect_timeout_seconds * 1000:.0f}",
        "fetch.max.wait.ms": f"{parsed.fetch_max_wait_ms}",
        "fetch.min.bytes": f"{parsed.fetch_min_bytes}",
        "fetch.max.bytes": f"{parsed.fetch_max_bytes}",
        "max.partition.fetch.bytes": f"{parsed.partition_fetch_bytes}",
    }
    assert defaults == {name: text for name, text, _ in PLAIN_OPTIONS if name in defaults}
    assert len(defaults) == len(PLAIN_OPTIONS) - 3  # bootstrap.servers and two aliases


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("client.id", "ours", "client_id", "ours"),
        ("client.rack", "eu-1a", "rack", "eu-1a"),
        ("request.timeout.ms", "5000", "request_timeout_seconds", 5.0),
        ("socket.connection.setup.timeout.ms", "250", "connect_timeout_seconds", 0.25),
        ("fetch.max.wait.ms", "0", "fetch_max_wait_ms", 0),
        ("fetch.min.bytes", " 7 ", "fetch_min_bytes", 7),
        ("fetch.max.bytes", "1000", "fetch_max_bytes", 1000),
        ("fetch.max.bytes", "2147483647", "fetch_max_bytes", 57_671_680),
        ("max.partition.fetch.bytes", "1", "partition_fetch_bytes", 1),
        ("max.partition.fetch.bytes", "57671681", "partition_fetch_bytes", 57_671_680),
    ],
)
def test_kafka_options_are_parsed(option: str, text: str, field: str, value: object) -> None:
    parsed, ignored = broker_settings({**SERVERS, f"kafka.{option}": text})
    assert getattr(parsed, field) == value
    assert ignored == ()


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:1", [("a", 1)]),
        (" a-b.example:9092 , 10.0.0.1:65535,", [("a-b.example", 9092), ("10.0.0.1", 65535)]),
        ("[::1]:9092", [("::1", 9092)]),
        ("[fe80::1%eth0]:1,[2001:db8::2]:2", [("fe80::1%eth0", 1), ("2001:db8::2", 2)]),
        ("a:1,a:1,a:2", [("a", 1), ("a", 2)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
    ],
)
def test_bootstrap_servers_are_parsed(text: str, servers: list[tuple[str, int]]) -> None:
    assert parse_settings(bootstrap__servers=text).bootstrap == tuple(servers)


@pytest.mark.parametrize(
    "text", ["a", "a:", ":1", "a:0", "a:65536", "a:1:2", "::1:9092", "a b:1", "u@a:1", "a:1;b:2"]
)
def test_invalid_bootstrap_servers_are_refused(text: str) -> None:
    problem = refusal_message(bootstrap__servers=f"ok:1,{text}")
    assert "kafka.bootstrap.servers" in problem
    assert "entry 2" in problem


def test_empty_bootstrap_servers_or_servers_with_a_protocol_are_refused() -> None:
    assert "contains no broker address" in refusal_message(bootstrap__servers=" , ")
    assert "security.protocol" in refusal_message(bootstrap__servers="SASL_SSL://a:1")


@pytest.mark.parametrize(
    "option",
    [name for name, default, _ in PLAIN_OPTIONS if default.isdecimal()],
)
@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1e3", "2147483648", "99999999999999"])
def test_invalid_numbers_in_kafka_options_are_refused(option: str, text: str) -> None:
    problem = refusal_message(**{option.replace(".", "__"): text})
    assert f"'kafka.{option}' must be a whole number" in problem


def test_fetch_max_wait_equal_to_request_timeout_is_refused() -> None:
    assert "less than kafka.request.timeout.ms" in refusal_message(
        fetch__max__wait__ms="1000", request__timeout__ms="1000"
    )


def test_unprintable_client_id_and_rack_are_refused() -> None:
    assert "printable" in refusal_message(client__id="a\nb")
    assert "printable" in refusal_message(client__rack="r" * 250)
    assert "zero byte" in refusal_message(client__rack="a\0b")
    assert "half of a surrogate pair" in refusal_message(client__rack="a\ud800")


@pytest.mark.parametrize("name", REFUSED)
def test_error_of_refused_option_states_reason_and_fix(name: str) -> None:
    option = name.replace("*", "class")
    problem = refusal_message(**{option.replace(".", "__"): "hunter2"})
    assert f"'kafka.{option}' is not supported: {REFUSED[name]}" in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    "name",
    [
        "sasl.login.class",
        "sasl.login.refresh.window.factor",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.server.callback.handler.class",
        "ssl.truststore",
        "security.protocoll",
    ],
)
def test_unknown_security_options_are_refused(name: str) -> None:
    assert f"'kafka.{name}' is not supported" in refusal_message(**{name.replace(".", "__"): "x"})


def test_error_of_misspelled_security_option_suggests_the_right_name() -> None:
    assert "did you mean kafka.ssl.truststore.location" in refusal_message(
        ssl__trustore__location="x"
    )


@pytest.mark.parametrize("name", [*WITHOUT_EFFECT, "whatever.of.a.plugin"])
def test_option_without_effect_is_ignored(name: str) -> None:
    option = f"kafka.{name.replace('*', 'id')}"
    sasl = {"kafka.security.protocol": "PLAINTEXT"} if "sasl" in name else {}
    assert broker_settings({**SERVERS, option: "x", **sasl})[1] == (option,)


def test_security_options_are_ignored_if_protocol_is_plaintext() -> None:
    idle = {"kafka.ssl.truststore.location": "/gone", "kafka.sasl.jaas.config": "nonsense"}
    parsed, ignored = broker_settings({**SERVERS, **idle, "kafka.security.protocol": "plaintext"})
    assert parsed is not None
    assert parsed.security.reveal() == Security("PLAINTEXT")
    assert ignored == tuple(sorted(idle))


@pytest.mark.parametrize("option", ["ssl__truststore__location", "sasl__mechanism"])
def test_security_options_without_security_protocol_are_refused(option: str) -> None:
    assert "needs kafka.security.protocol" in refusal_message(**{option: "x"})


def test_unknown_security_protocol_is_refused() -> None:
    problem = refusal_message(security__protocol="hunter2")
    assert "must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL" in problem
    assert "hunter2" not in problem


def test_tables_in_docs_list_every_option_exactly_once() -> None:
    names = [name for name, _, _ in (*PLAIN_OPTIONS, *SECURITY_OPTIONS)]
    assert len(names) == len(COUNTED)
    assert not COUNTED & {*REFUSED, *WITHOUT_EFFECT}
    tables = kafka_tables()
    rows = tables["kafka-options"] + tables["kafka-security"]
    assert all(rows.count(f"| `kafka.{name}` |") == 1 for name in names)
    assert all(f"`kafka.{name}`" in tables["kafka-refused"] for name in REFUSED)


def test_missing_kafka_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka", None)
    with pytest.raises(MissingExtraError, match=r"needs kafka-python\. .*\[kafka\]'"):
        broker_settings(SERVERS)
    assert broker_settings({"kafka.group.id": "x"}) == (None, ("kafka.group.id",))


def test_options_are_parsed_without_importing_ssl_and_kafka() -> None:
    program = (
        "import sys; from kts_source.broker.kafka_options import broker_settings;"
        "broker_settings({'kafka.bootstrap.servers': 'a:1'});"
        "print(sorted({'ssl', 'kafka', 'cryptography'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
