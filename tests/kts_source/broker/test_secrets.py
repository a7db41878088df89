"""Tests that credentials are stored only in `Secret` and never appear in a repr or an error."""

from __future__ import annotations

import dataclasses
import pickle
import re
import traceback
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kts_source.broker.kafka_options import broker_settings
from kts_source.broker.kafka_table import COUNTED, REFUSED
from kts_source.broker.settings import (
    MECHANISMS,
    PROTOCOLS,
    AwsCredentials,
    Kerberos,
    Password,
    Security,
    Tls,
    TokenCallback,
    TokenEndpoint,
)
from kts_source.errors import InvalidOptionError
from kts_source.options import parse_options
from kts_source.secret import Secret
from tests.docs.fences import ROOT, blocks
from tests.kts_source.broker.certificates import PASSWORD, authority, client

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2-hunter2"
APACHE = "org.apache.kafka.common.security"
JAAS = {
    "PLAIN": f"{APACHE}.plain.PlainLoginModule required",
    "SCRAM-SHA-256": f"{APACHE}.scram.ScramLoginModule required",
    "SCRAM-SHA-512": f"{APACHE}.scram.ScramLoginModule required",
    "OAUTHBEARER": f"{APACHE}.oauthbearer.OAuthBearerLoginModule required",
    "AWS_MSK_IAM": "software.amazon.msk.auth.iam.IAMLoginModule required",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule required",
}


def secret_options(folder: Path) -> dict[str, str]:
    """Returns options for SCRAM over TLS with a client certificate."""
    store = folder / "key.p12"
    store.write_bytes(client().pkcs12())
    return {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": f'{JAAS["PLAIN"]} username="alice" password="{SECRET}";'.replace(
            "plain.Plain", "scram.Scram"
        ),
        "kafka.ssl.keystore.location": str(store),
        "kafka.ssl.keystore.password": PASSWORD,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": authority().chain_pem,
    }


def test_broker_settings_hide_secrets_and_can_be_pickled(tmp_path: Path) -> None:
    options = parse_options({"path": "/t", "subscribe": "a", **secret_options(tmp_path)})
    assert options.brokers is not None
    security = options.brokers.security.reveal()
    assert security.login == Password("alice", SECRET)
    assert security.tls is not None
    for text in (
        repr(options),
        repr(options.brokers),
        repr(security),
        str(security.login),
        repr(security.tls),
        f"{dataclasses.asdict(options.brokers)}",
    ):
        for fragment in (SECRET, "alice", PASSWORD, "BEGIN", repr(client().key_der)[2:30], "\\x"):
            assert fragment not in text
    assert pickle.loads(pickle.dumps(options)) == options
    # After `Secret` is removed, the pickle must not contain any credential.
    bare = dataclasses.replace(options.brokers, security=Secret(Security()))
    remaining = pickle.dumps(dataclasses.replace(options, brokers=bare))
    for value in (SECRET.encode(), client().key_der):
        assert value in pickle.dumps(options)
        assert value not in remaining
    assert PASSWORD.encode() not in pickle.dumps(options)  # the store was opened here


@pytest.mark.parametrize(
    "value",
    [
        Password("alice", SECRET),
        TokenEndpoint("https://x", "alice", SECRET, SECRET, False, (("a", SECRET),)),
        TokenCallback(SECRET, ((SECRET, SECRET),)),
        AwsCredentials(SECRET),
        Kerberos(SECRET, SECRET, SECRET),
        Tls((SECRET.encode(),), (), SECRET.encode(), True, "TLSv1.2", "TLSv1.3"),
        Security("SSL", None, "PLAIN", Password(SECRET, SECRET)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_repr_of_security_values_contains_no_secret(value: object) -> None:
    assert SECRET not in f"{value} {value!r} {[value]}"
    assert pickle.loads(pickle.dumps(value)) == value


secrets = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30
).map(lambda text: f"{SECRET}{text}{SECRET}")


@st.composite
def random_options(draw: st.DrawFn) -> tuple[dict[str, str], tuple[str, ...]]:
    """Draws options that contain secrets, some of them at invalid positions.

    Returns two values: the options, and the secrets.
    """
    hidden = tuple(draw(st.lists(secrets, min_size=1, max_size=3)))
    mechanism = draw(st.sampled_from(MECHANISMS))
    pairs = draw(
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["username", "password", "clientId", "clientSecret", "extension_x", "keyTab"]
                ),
                st.sampled_from(["=", " ", "", "=="]),
                st.sampled_from(['"{}"', "'{}'", "{}", '"{}', '{}"']),
                st.sampled_from(hidden),
            ),
            max_size=4,
        )
    )
    inside = " ".join(f"{name}{sign}{quotes.format(value)}" for name, sign, quotes, value in pairs)
    base = {
        "bootstrap.servers": draw(st.sampled_from(["a:1", f"a:1,{hidden[0]}"])),
        "security.protocol": draw(st.sampled_from([*PROTOCOLS, hidden[0]])),
        "sasl.mechanism": draw(st.sampled_from([mechanism, mechanism, hidden[0]])),
        "sasl.jaas.config": draw(
            st.sampled_from([f"{JAAS[mechanism]} {inside};", f"{inside}", JAAS[mechanism]])
        ),
    }
    names = st.sampled_from(sorted(COUNTED | {name.strip("*") for name in REFUSED}))
    more = draw(st.dictionaries(names, st.sampled_from(hidden), max_size=3))
    kinds = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "ssl.truststore.type": st.just("PEM"),
                "ssl.keystore.type": st.sampled_from(["PEM", "PKCS12"]),
            },
        )
    )
    options = base | kinds | more
    return {f"kafka.{name}": text for name, text in options.items()}, hidden


@given(random_options())
def test_option_errors_show_no_secret_of_any_option(
    case: tuple[dict[str, str], tuple[str, ...]],
) -> None:
    options, hidden = case
    problem: InvalidOptionError | None = None
    shown = ""
    try:
        settings, _ = broker_settings(options)
        # Errors show `client_id` and `rack`, because these options are not meant for secrets.
        assert settings is not None
        shown = repr(dataclasses.replace(settings, client_id="", rack=""))
    except InvalidOptionError as error:
        problem = error
    if problem is not None:
        shown = "".join(traceback.format_exception(problem)) + repr(problem)
        assert re.search(r"kafka\.|OAUTHBEARER needs", str(problem))
    assert not any(value in shown for value in hidden)
    assert SECRET not in shown  # including fragments of secrets


@pytest.mark.parametrize("name", sorted(COUNTED - {"client.id", "client.rack"}))
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_secret_used_as_value_of_another_option_is_not_shown(
    name: str, protocol: str, tmp_path: Path
) -> None:
    base = secret_options(tmp_path) | {"kafka.security.protocol": protocol}
    if not name.startswith("ssl.key"):  # opening the store takes a while
        base = {option: text for option, text in base.items() if "ssl.keystore" not in option}
    for value in (SECRET, f"/{SECRET}", f"http://{SECRET}/", f"a:1,{SECRET}"):
        try:
            shown = repr(broker_settings({**base, f"kafka.{name}": value}))
        except InvalidOptionError as error:
            shown = "".join(traceback.format_exception(error))
        assert SECRET not in shown


EXAMPLES = [
    block.text for block in blocks(ROOT / "docs" / "brokers.md") if block.language == "properties"
]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_option_examples_in_the_docs_are_accepted(example: str, tmp_path: Path) -> None:
    from tests.kts_source.broker.certificates import jks

    files = {
        "/etc/kafka/authority.pem": authority().chain_pem.encode(),
        "/etc/kafka/truststore.jks": jks(authority().chain_der, "…"),
        "/etc/kafka/alice.p12": client().pkcs12("…"),
    }
    for path, data in files.items():
        copy = tmp_path / path.rpartition("/")[2]
        copy.write_bytes(data)
        example = example.replace(path, str(copy))
    options = dict(line.split("=", 1) for line in example.splitlines())
    settings, ignored = broker_settings(options)
    assert settings is not None
    assert ignored == ()


def test_docs_have_an_example_of_every_mechanism() -> None:
    shown = set(re.findall(r"sasl\.mechanism=(\S+)", "".join(EXAMPLES)))
    assert shown == set(MECHANISMS) - {"SCRAM-SHA-256"}
