"""Who logs in, by which mechanism, and what is refused."""

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


def security(mechanism: str, jaas: str | None = None, **more: str) -> Security:
    given = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        **({} if jaas is None else {"sasl.jaas.config": jaas}),
        **more,
    }
    found, ignored = broker_settings({f"kafka.{name}": text for name, text in given.items()})
    assert found is not None
    assert ignored == ()
    return found.security.reveal()


def refused(mechanism: str, jaas: str | None = None, **more: str) -> str:
    with pytest.raises(InvalidOptionError) as caught:
        security(mechanism, jaas, **more)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("scram-sha-512", SCRAM)],
)
def test_name_and_password(mechanism: str, module: str) -> None:
    found = security(mechanism, f"{module} required {USER} serviceName=kafka;")
    assert found.mechanism == mechanism.upper()
    assert found.login == Password("alice", "hunter2")
    assert found.secret_values() == {"hunter2"}


@pytest.mark.parametrize(
    ("mechanism", "jaas", "words"),
    [
        ("PLAIN", None, "'kafka.sasl.jaas.config' is needed for PLAIN"),
        ("SCRAM-SHA-512", None, "is needed for SCRAM-SHA-512"),
        ("PLAIN", f"{SCRAM} required {USER};", "SCRAM-SHA-256 and SCRAM-SHA-512, but"),
        ("SCRAM-SHA-256", f"{PLAIN} required {USER};", "of PLAIN, but"),
        ("PLAIN", f'{PLAIN} required username="alice";', "must give password"),
        ("PLAIN", f'{PLAIN} required username="" password="";', "must give username and password"),
        ("PLAIN", f'{PLAIN} required username="a\\0b" password="hunter2";', "zero byte"),
        ("SCRAM-SHA-256", f"{SCRAM} required {USER} tokenauth=true;", "tokenauth"),
        ("PLAIN", f'{PLAIN} required {USER} hunter2="x";', "has an option, number 3,"),
        ("PLAIN", f'{PLAIN} required {USER} tokenauth="x";', "has tokenauth which is not"),
        ("PLAIN", f"{PLAIN} required {USER}", "end with a semicolon"),
        ("AWS_MSK_IAM", f'{IAM} required awsRoleArn="hunter2";', "has awsRoleArn which is not"),
        ("DIGEST-MD5", None, "'kafka.sasl.mechanism' must be PLAIN, SCRAM-SHA-256"),
    ],
)
def test_refused_logins(mechanism: str, jaas: str | None, words: str) -> None:
    assert words in refused(mechanism, jaas)


def test_no_mechanism_means_kerberos_as_in_java() -> None:
    given = {"bootstrap.servers": "a:1", "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(InvalidOptionError, match=r"kerberos\.service\.name' is needed for GSSAPI"):
        broker_settings({f"kafka.{name}": text for name, text in given.items()})


def test_tokens_of_an_endpoint() -> None:
    jaas = f'{OAUTH} required {CLIENT} scope="s t" extension_logicalCluster="lkc-1";'
    handler = f"{APACHE}.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    found = security("OAUTHBEARER", jaas, **HTTPS, **{LOGIN_HANDLER: handler})
    extensions = (("logicalCluster", "lkc-1"),)
    url = HTTPS[ENDPOINT]
    assert found.login == TokenEndpoint(url, "alice", "hunter2", "s t", False, extensions)
    assert found.secret_values() == {"hunter2"}


def test_options_win_over_the_login_module() -> None:
    credentials = "sasl.oauthbearer.client.credentials.client"
    more = {
        f"{credentials}.id": "bob",
        f"{credentials}.secret": "else",
        "sasl.oauthbearer.scope": "wide",
        "sasl.oauthbearer.header.urlencode": "TRUE",
    }
    expected = TokenEndpoint(HTTPS[ENDPOINT], "bob", "else", "wide", True, ())
    jaas = f"{OAUTH} required {CLIENT} scope=narrow;"
    assert security("OAUTHBEARER", jaas, **HTTPS, **more).login == expected
    assert security("OAUTHBEARER", **HTTPS, **more).login == expected


@pytest.mark.parametrize(
    "url", ["http://localhost:80/t", "http://127.0.0.1/t", "http://[::1]:8/t", "https://x"]
)
def test_endpoints(url: str) -> None:
    assert security("OAUTHBEARER", f"{OAUTH} required {CLIENT};", **{ENDPOINT: url}).login


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://login.example/t", "must be https"),
        ("http://localhost.hunter2/t", "must be https"),
        ("file:///hunter2", "is not a URL"),
        ("hunter2", "is not a URL"),
        ("https://a:99999/", "is not a URL"),
        ("https://[::1/", "is not a URL"),
        ("https://a/ b", "is not a URL"),
        ("https://a/\r\nX: y", "is not a URL"),
        ("https://alice:hunter2@a/", "must not have a user"),
    ],
)
def test_no_endpoints(url: str, words: str) -> None:
    problem = refused("OAUTHBEARER", f"{OAUTH} required {CLIENT};", **{ENDPOINT: url})
    assert f"'kafka.{ENDPOINT}' {words}" in problem


def test_tokens_of_a_function() -> None:
    found = security("OAUTHBEARER", **{LOGIN_HANDLER: "our.tokens:get"})
    assert found.login == TokenCallback("our.tokens:get", ())
    jaas = f"{OAUTH} required extension_pool=p;"
    found = security("OAUTHBEARER", jaas, **{LOGIN_HANDLER: "our.tokens:get"})
    assert found.login == TokenCallback("our.tokens:get", (("pool", "p"),))


@pytest.mark.parametrize(
    ("jaas", "more", "words"),
    [
        (f"{OAUTH} required {CLIENT};", {}, "OAUTHBEARER needs option"),
        (None, HTTPS, "needs clientId and clientSecret"),
        (f"{OAUTH} required clientId=a;", HTTPS, "needs clientId and clientSecret"),
        (f'{OAUTH} required clientId="a:b" clientSecret="c";', HTTPS, "without a colon"),
        (None, {**HTTPS, LOGIN_HANDLER: "a:b"}, "give one"),
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
def test_refused_tokens(jaas: str | None, more: dict[str, str], words: str) -> None:
    assert words in refused("OAUTHBEARER", jaas, **more)


@pytest.mark.parametrize("shaded", ["", "shadedmskiam."])
def test_aws(shaded: str) -> None:
    handler = f"{shaded}software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    more = {"security.protocol": "SASL_SSL", CLIENT_HANDLER: handler}
    assert security("AWS_MSK_IAM", **more).login == AwsCredentials("")
    jaas = f'{shaded}{IAM} required awsProfileName="lake" awsDebugCreds=true;'
    assert security("AWS_MSK_IAM", jaas, **more).login == AwsCredentials("lake")
    assert "must be SASL_SSL for AWS_MSK_IAM" in refused("AWS_MSK_IAM", jaas)


@pytest.mark.parametrize("mechanism", ["PLAIN", "AWS_MSK_IAM"])
@pytest.mark.parametrize("option", [LOGIN_HANDLER, CLIENT_HANDLER])
def test_other_handlers_are_refused(mechanism: str, option: str) -> None:
    jaas = f"{PLAIN} required {USER};" if mechanism == "PLAIN" else None
    more = {"security.protocol": "SASL_SSL", option: "com.hunter2.Handler"}
    assert f"'kafka.{option}' is not supported" in refused(mechanism, jaas, **more)


def test_kerberos() -> None:
    service = {"sasl.kerberos.service.name": "kafka"}
    assert security("GSSAPI", **service).login == Kerberos("kafka", "", "")
    cache = f"{KRB5} required useTicketCache=true serviceName=kafka keyTab='/not/used';"
    assert security("GSSAPI", cache).login == Kerberos("kafka", "", "")
    jaas = f'{KRB5} required useKeyTab=true storeKey=true keyTab="/gone" principal="a@B";'
    # The file is the worker's: it is not looked for here.
    assert security("GSSAPI", jaas, **service).login == Kerberos("kafka", "a@B", "/gone")
    assert "differ" in refused("GSSAPI", f"{KRB5} required serviceName=other;", **service)
    assert "keyTab and principal" in refused(
        "GSSAPI", f"{KRB5} required useKeyTab=true keyTab=k;", **service
    )
    assert "has ticketCache" in refused("GSSAPI", f"{KRB5} required ticketCache=c;", **service)
