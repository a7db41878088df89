"""Tests SASL options: logins of each mechanism are parsed, and invalid combinations are refused."""

from __future__ import annotations

import pytest

from kts_source.broker.kafka_options import broker_settings
from kts_source.broker.settings import (
    AwsCredentials,
    Kerberos,
    Password,
    Security,
    TokenCallback,
    TokenEndpoint,
)
from kts_source.errors import InvalidOptionError

APACHE = "org.apache.kafka.common.security"
PLAIN = f"{APACHE}.plain.PlainLoginModule"
SCRAM = f"{APACHE}.scram.ScramLoginModule"
OAUTH = f"{APACHE}.oauthbearer.OAuthBearerLoginModule"
IAM = "software.amazon.msk.auth.iam.IAMLoginModule"
KRB5 = "com.sun.security.auth.module.Krb5LoginModule"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
LOGIN_HANDLER = "sasl.login.callback.handler.class"
CLIENT_HANDLER = "sasl.client.callback.handler.class"
USER = 'username="alice" password="hunter2"'
CLIENT = 'clientId="alice" clientSecret="hunter2"'
HTTPS = {ENDPOINT: "https://login.example:8443/token?x=1"}


def parse_security(mechanism: str, jaas: str | None = None, **extra_options: str) -> Security:
    options = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        **({} if jaas is None else {"sasl.jaas.config": jaas}),
        **extra_options,
    }
    settings, ignored = broker_settings({f"kafka.{name}": text for name, text in options.items()})
    assert settings is not None
    assert ignored == ()
    return settings.security.reveal()


def refusal_message(mechanism: str, jaas: str | None = None, **extra_options: str) -> str:
    with pytest.raises(InvalidOptionError) as caught:
        parse_security(mechanism, jaas, **extra_options)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("scram-sha-512", SCRAM)],
)
def test_username_and_password_are_parsed(mechanism: str, module: str) -> None:
    login = parse_security(mechanism, f"{module} required {USER} serviceName=kafka;")
    assert login.mechanism == mechanism.upper()
    assert login.login == Password("alice", "hunter2")
    assert login.secret_values() == {"hunter2"}


@pytest.mark.parametrize(
    ("mechanism", "jaas", "message"),
    [
        ("PLAIN", None, "'kafka.sasl.jaas.config' is needed for PLAIN"),
        ("SCRAM-SHA-512", None, "is needed for SCRAM-SHA-512"),
        ("PLAIN", f"{SCRAM} required {USER};", "SCRAM-SHA-256 and SCRAM-SHA-512, but"),
        ("SCRAM-SHA-256", f"{PLAIN} required {USER};", "of PLAIN, but"),
        ("PLAIN", f'{PLAIN} required username="alice";', "needs options password"),
        ("PLAIN", f'{PLAIN} required username="" password="";', "options username and password"),
        ("PLAIN", f'{PLAIN} required username="a\\0b" password="hunter2";', "zero byte"),
        ("SCRAM-SHA-256", f"{SCRAM} required {USER} tokenauth=true;", "tokenauth"),
        ("PLAIN", f'{PLAIN} required {USER} hunter2="x";', "has an option, number 3,"),
        ("PLAIN", f'{PLAIN} required {USER} tokenauth="x";', "has tokenauth which is not"),
        ("PLAIN", f"{PLAIN} required {USER}", "end with a semicolon"),
        ("AWS_MSK_IAM", f'{IAM} required awsRoleArn="hunter2";', "has awsRoleArn which is not"),
        ("DIGEST-MD5", None, "'kafka.sasl.mechanism' must be PLAIN, SCRAM-SHA-256"),
    ],
)
def test_invalid_login_options_are_refused(mechanism: str, jaas: str | None, message: str) -> None:
    assert message in refusal_message(mechanism, jaas)


def test_missing_mechanism_defaults_to_gssapi() -> None:
    options = {"bootstrap.servers": "a:1", "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(InvalidOptionError, match=r"kerberos\.service\.name' is needed for GSSAPI"):
        broker_settings({f"kafka.{name}": text for name, text in options.items()})


def test_oauth_endpoint_options_are_parsed() -> None:
    jaas = f'{OAUTH} required {CLIENT} scope="s t" extension_logicalCluster="lkc-1";'
    handler = f"{APACHE}.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    login = parse_security("OAUTHBEARER", jaas, **HTTPS, **{LOGIN_HANDLER: handler})
    extensions = (("logicalCluster", "lkc-1"),)
    url = HTTPS[ENDPOINT]
    assert login.login == TokenEndpoint(url, "alice", "hunter2", "s t", False, extensions)
    assert login.secret_values() == {"hunter2"}


def test_oauth_options_override_the_login_module() -> None:
    credentials = "sasl.oauthbearer.client.credentials.client"
    extra_options = {
        f"{credentials}.id": "bob",
        f"{credentials}.secret": "else",
        "sasl.oauthbearer.scope": "wide",
        "sasl.oauthbearer.header.urlencode": "TRUE",
    }
    expected = TokenEndpoint(HTTPS[ENDPOINT], "bob", "else", "wide", True, ())
    jaas = f"{OAUTH} required {CLIENT} scope=narrow;"
    assert parse_security("OAUTHBEARER", jaas, **HTTPS, **extra_options).login == expected
    assert parse_security("OAUTHBEARER", **HTTPS, **extra_options).login == expected


@pytest.mark.parametrize(
    "url", ["http://localhost:80/t", "http://127.0.0.1/t", "http://[::1]:8/t", "https://x"]
)
def test_oauth_endpoint_url_is_accepted(url: str) -> None:
    assert parse_security("OAUTHBEARER", f"{OAUTH} required {CLIENT};", **{ENDPOINT: url}).login


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://login.example/t", "must be an https URL"),
        ("http://localhost.hunter2/t", "must be an https URL"),
        ("file:///hunter2", "is not a URL"),
        ("hunter2", "is not a URL"),
        ("https://a:99999/", "is not a URL"),
        ("https://[::1/", "is not a URL"),
        ("https://a/ b", "is not a URL"),
        ("https://a/\r\nX: y", "is not a URL"),
        ("https://alice:hunter2@a/", "must not have a user"),
    ],
)
def test_invalid_oauth_endpoint_url_is_refused(url: str, message: str) -> None:
    problem = refusal_message("OAUTHBEARER", f"{OAUTH} required {CLIENT};", **{ENDPOINT: url})
    assert f"'kafka.{ENDPOINT}' {message}" in problem


def test_oauth_callback_is_parsed() -> None:
    login = parse_security("OAUTHBEARER", **{LOGIN_HANDLER: "our.tokens:get"})
    assert login.login == TokenCallback("our.tokens:get", ())
    jaas = f"{OAUTH} required extension_pool=p;"
    login = parse_security("OAUTHBEARER", jaas, **{LOGIN_HANDLER: "our.tokens:get"})
    assert login.login == TokenCallback("our.tokens:get", (("pool", "p"),))


@pytest.mark.parametrize(
    ("jaas", "extra_options", "message"),
    [
        (f"{OAUTH} required {CLIENT};", {}, "OAUTHBEARER needs option"),
        (None, HTTPS, "needs clientId and clientSecret"),
        (f"{OAUTH} required clientId=a;", HTTPS, "needs clientId and clientSecret"),
        (f'{OAUTH} required clientId="a:b" clientSecret="c";', HTTPS, "without a colon"),
        (None, {**HTTPS, LOGIN_HANDLER: "a:b"}, "remove one"),
        (None, {LOGIN_HANDLER: "com.hunter2.Handler"}, "other Java classes cannot run"),
        (f"{OAUTH} required unsecuredLoginStringClaim_sub=a;", HTTPS, "number 1, which is not"),
        (f"{OAUTH} required {CLIENT} extension_auth=a;", HTTPS, "extension_"),
        (f'{OAUTH} required {CLIENT} extension_x="a\\1b";', HTTPS, "extension_"),
        (None, {**HTTPS, "sasl.oauthbearer.header.urlencode": "hunter2"}, "needs clientId"),
        (
            f"{OAUTH} required {CLIENT};",
            {**HTTPS, "sasl.oauthbearer.header.urlencode": "hunter2"},
            "must be true or false",
        ),
    ],
)
def test_invalid_oauth_options_are_refused(
    jaas: str | None, extra_options: dict[str, str], message: str
) -> None:
    assert message in refusal_message("OAUTHBEARER", jaas, **extra_options)


@pytest.mark.parametrize("shaded", ["", "shadedmskiam."])
def test_aws_msk_iam_options_are_parsed(shaded: str) -> None:
    handler = f"{shaded}software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    extra_options = {"security.protocol": "SASL_SSL", CLIENT_HANDLER: handler}
    assert parse_security("AWS_MSK_IAM", **extra_options).login == AwsCredentials("")
    jaas = f'{shaded}{IAM} required awsProfileName="lake" awsDebugCreds=true;'
    assert parse_security("AWS_MSK_IAM", jaas, **extra_options).login == AwsCredentials("lake")
    assert "must be SASL_SSL for AWS_MSK_IAM" in refusal_message("AWS_MSK_IAM", jaas)


@pytest.mark.parametrize("mechanism", ["PLAIN", "AWS_MSK_IAM"])
@pytest.mark.parametrize("option", [LOGIN_HANDLER, CLIENT_HANDLER])
def test_unknown_callback_handler_is_refused(mechanism: str, option: str) -> None:
    jaas = f"{PLAIN} required {USER};" if mechanism == "PLAIN" else None
    extra_options = {"security.protocol": "SASL_SSL", option: "com.hunter2.Handler"}
    assert f"'kafka.{option}' supports only" in refusal_message(mechanism, jaas, **extra_options)


def test_kerberos_options_are_parsed() -> None:
    service = {"sasl.kerberos.service.name": "kafka"}
    assert parse_security("GSSAPI", **service).login == Kerberos("kafka", "", "")
    cache = f"{KRB5} required useTicketCache=true serviceName=kafka keyTab='/not/used';"
    assert parse_security("GSSAPI", cache).login == Kerberos("kafka", "", "")
    jaas = f'{KRB5} required useKeyTab=true storeKey=true keyTab="/gone" principal="a@B";'
    # The keytab exists only on workers, so parsing does not check for the file.
    assert parse_security("GSSAPI", jaas, **service).login == Kerberos("kafka", "a@B", "/gone")
    assert "differ" in refusal_message("GSSAPI", f"{KRB5} required serviceName=other;", **service)
    assert "keyTab and principal" in refusal_message(
        "GSSAPI", f"{KRB5} required useKeyTab=true keyTab=k;", **service
    )
    assert "has ticketCache" in refusal_message(
        "GSSAPI", f"{KRB5} required ticketCache=c;", **service
    )
