"""Tests SASL exchanges byte by byte. The servers in these tests follow the RFCs."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
import sys
import types
from typing import TYPE_CHECKING, Any, ClassVar, Self
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import botocore.auth
import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from kts_source.broker import sasl as oauth
from kts_source.broker.sasl import SaslClient, require_kafka, sasl_client
from kts_source.broker.settings import (
    AwsCredentials,
    Kerberos,
    Login,
    Password,
    Security,
    TokenCallback,
)
from kts_source.errors import BrokerError, MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MSK = "b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com"


def start_login(mechanism: str, credentials: Login, host: str = "broker") -> SaslClient:
    return sasl_client(Security("SASL_SSL", None, mechanism, credentials), host)


class ScramServer:
    """Server side of SCRAM logins (RFC 5802), like Kafka's `ScramSaslServer`."""

    def __init__(self, mechanism: str, users: dict[str, str], iterations: int = 4096) -> None:
        self.hash = HASHES[mechanism]
        self.users = users
        self.iterations = iterations
        self.salt = b"salt\xff,="
        self.messages: list[str] = []

    def hmac(self, key: bytes, text: str) -> bytes:
        return hmac.new(key, text.encode(), self.hash).digest()

    def first(self, data: bytes) -> bytes:
        header, bare = data.decode()[:3], data.decode()[3:]
        assert header == "n,,"
        name, nonce = (field[2:] for field in bare.split(","))
        self.password = self.users[name.replace("=2C", ",").replace("=3D", "=")]
        salt = base64.b64encode(self.salt).decode()
        self.nonce = nonce + "server-part"
        self.messages = [bare, f"r={self.nonce},s={salt},i={self.iterations}"]
        return self.messages[1].encode()

    def final(self, data: bytes) -> bytes:
        without_proof, proof = data.decode().rsplit(",p=", 1)
        assert without_proof == f"c=biws,r={self.nonce}"
        message = ",".join([*self.messages, without_proof])
        salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), self.salt, self.iterations)
        stored = hashlib.new(self.hash, self.hmac(salted, "Client Key")).digest()
        signature = self.hmac(stored, message)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash, key).digest() != stored:
            raise PermissionError
        verifier = self.hmac(self.hmac(salted, "Server Key"), message)
        return b"v=" + base64.b64encode(verifier)


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("name", ["alice", "a=b,c", "ällice"])
def test_scram_login_succeeds(mechanism: str, name: str) -> None:
    server = ScramServer(mechanism, {name: "pass=wörd,"})
    client = start_login(mechanism, Password(name, "pass=wörd,"))
    client.receive(server.first(client.auth_bytes()))
    assert not client.is_done()
    client.receive(server.final(client.auth_bytes()))
    assert client.is_done()


def test_scram_login_with_wrong_password_is_rejected_by_the_server() -> None:
    server = ScramServer("SCRAM-SHA-256", {"alice": "right"})
    client = start_login("SCRAM-SHA-256", Password("alice", "wrong"))
    client.receive(server.first(client.auth_bytes()))
    with pytest.raises(PermissionError):
        server.final(client.auth_bytes())


def test_scram_messages_equal_the_example_in_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uuid.uuid4", lambda: "rOprNGfwEbeRWgbNEkqO")
    client = start_login("SCRAM-SHA-256", Password("user", "pencil"))
    assert client.auth_bytes() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    client.receive(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert client.auth_bytes() == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.receive(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert client.is_done()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense",
        b"\xff",
        b"r=other,s=c2FsdA==,i=4096",
        b"r={nonce}x,s=c2FsdA==",
        b"r={nonce}x,s=c2FsdA==,i=x",
        b"r={nonce}x,s=c2FsdA==,i=1000000000000",
        b"r={nonce}x,s=c2Fsd,i=4096",
        # Iteration counts that are repeated, malformed, or too small for a safe proof.
        b"r={nonce}x,s=c2FsdA==,i=4096,i=1",
        b"r={nonce}x,i=4096,s=c2FsdA==,i=1",
        b"r={nonce}x,s=c2FsdA==,i=0000000001",
        b"r={nonce}x,s=c2FsdA==,i=+1",
        b"r={nonce}x,s=c2FsdA==,i=\xd9\xa1",
        b"m=x,r={nonce}x,s=c2FsdA==,i=4096",
    ],
)
def test_invalid_first_scram_response_is_refused(answer: bytes) -> None:
    client = start_login("SCRAM-SHA-256", Password("alice", "hunter2"))
    nonce = client.auth_bytes().rpartition(b"r=")[2]
    with pytest.raises(BrokerError, match="login by SCRAM-SHA-256 failed") as caught:
        client.receive(answer.replace(b"{nonce}", nonce))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("iterations", [1, 4095])
def test_too_few_scram_iterations_are_refused(iterations: int) -> None:
    server = ScramServer("SCRAM-SHA-256", {"alice": "hunter2"}, iterations)
    client = start_login("SCRAM-SHA-256", Password("alice", "hunter2"))
    with pytest.raises(BrokerError, match=f"{iterations} iterations"):
        client.receive(server.first(client.auth_bytes()))


@pytest.mark.parametrize("answer", [b"v=c2lnbmF0dXJl", b"e=other-error", b"", b"v=?"])
def test_scram_login_refuses_server_that_does_not_prove_the_password(answer: bytes) -> None:
    server = ScramServer("SCRAM-SHA-512", {"alice": "hunter2"})
    client = start_login("SCRAM-SHA-512", Password("alice", "hunter2"))
    client.receive(server.first(client.auth_bytes()))
    client.auth_bytes()
    with pytest.raises(BrokerError, match="login by SCRAM-SHA-512 failed"):
        client.receive(answer)
    assert not client.is_done()


def test_plain_login_sends_name_and_password() -> None:
    client = start_login("PLAIN", Password("älice", "hunter2"))
    assert client.auth_bytes().split(b"\0")[1:] == ["älice".encode(), b"hunter2"]
    client.receive(b"")
    assert client.is_done()


def return_token() -> str:
    return "header.payload.signature-_~+/=="


def test_login_fails_if_the_server_sends_too_many_responses() -> None:
    client = start_login("OAUTHBEARER", TokenCallback(f"{__name__}:return_token", ()))
    for _ in range(16):
        client.auth_bytes()
        client.receive(b"again")
    with pytest.raises(BrokerError, match="too many responses"):
        client.receive(b"again")


def return_none() -> None:
    return None


def return_two_lines() -> str:
    return "hunter2\x01evil=1"


def fail() -> str:
    raise RuntimeError("hunter2")


def test_oauth_login_sends_token_and_extensions() -> None:
    source = TokenCallback(f"{__name__}:return_token", (("logicalCluster", "lkc-1"), ("pool", "p")))
    client = start_login("OAUTHBEARER", source)
    token = return_token()
    # RFC 7628, 3.1
    expected = f"n,,\x01auth=Bearer {token}\x01logicalCluster=lkc-1\x01pool=p\x01\x01"
    assert client.auth_bytes() == expected.encode()
    client.receive(b"")
    assert client.is_done()


def test_client_acknowledges_rejection_of_an_oauth_token() -> None:
    client = start_login("OAUTHBEARER", TokenCallback(f"{__name__}:return_token", ()))
    client.auth_bytes()
    client.receive(b'{"status":"invalid_token"}')
    assert not client.is_done()
    assert client.auth_bytes() == b"\x01"  # RFC 7628, 3.2.3


@pytest.mark.parametrize(
    "name", ["return_none", "return_two_lines", "fail", "missing", "return_token.x"]
)
def test_invalid_result_of_token_callback_is_an_error(name: str) -> None:
    client = start_login("OAUTHBEARER", TokenCallback(f"{__name__}:{name}", ()))
    with pytest.raises(BrokerError, match="the callback") as caught:
        client.auth_bytes()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    (tmp_path / "config").write_text("[profile lake]\nregion = ap-south-1\n")
    (tmp_path / "credentials").write_text(
        "[lake]\naws_access_key_id = AKIDLAKE\naws_secret_access_key = hunter2\n"
    )


@pytest.mark.usefixtures("no_aws")
def test_aws_login_is_signed_for_the_region_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    client = start_login("AWS_MSK_IAM", AwsCredentials(""), MSK)
    message = json.loads(client.auth_bytes())
    assert b"hunter2" not in client.auth_bytes()
    key, day, *scope = message["x-amz-credential"].split("/")
    assert (key, scope) == ("AKIDEXAMPLE", ["eu-west-1", "kafka-cluster", "aws4_request"])
    assert message["x-amz-date"].startswith(day)
    assert (message["host"], message["action"]) == (MSK, "kafka-cluster:Connect")
    assert message["x-amz-security-token"] == "session"
    assert message["x-amz-signature"] == _signature(message, "hunter2")
    assert not client.is_done()
    client.receive(b'{"version":"2020_10_22","request-id":"1"}')
    assert client.is_done()


def _signature(message: dict[str, str], secret: str) -> str:
    """Returns the signature that botocore computes for `message`, which is converted to a URL with
    the same parameters.
    """
    key, _, region, service, _ = message["x-amz-credential"].split("/")
    token = message.get("x-amz-security-token")
    request = AWSRequest("GET", f"https://{message['host']}/", params={"Action": message["action"]})
    signer = SigV4QueryAuth(Credentials(key, secret, token), service, region, expires=900)
    stamp = datetime.datetime.strptime(f"{message['x-amz-date']}+0000", "%Y%m%dT%H%M%SZ%z")
    with mock.patch.object(botocore.auth, "get_current_datetime", return_value=stamp):
        signer.add_auth(request)
    (signature,) = parse_qs(urlsplit(str(request.url)).query)["X-Amz-Signature"]
    return signature


@pytest.mark.usefixtures("no_aws")
def test_aws_profile_provides_credentials_and_region() -> None:
    message = json.loads(start_login("AWS_MSK_IAM", AwsCredentials("lake"), "b1").auth_bytes())
    assert message["x-amz-credential"].startswith("AKIDLAKE/")
    assert "/ap-south-1/" in message["x-amz-credential"]
    message = json.loads(start_login("AWS_MSK_IAM", AwsCredentials("lake"), MSK).auth_bytes())
    assert "/eu-west-1/" in message["x-amz-credential"]


@pytest.mark.usefixtures("no_aws")
def test_aws_login_without_credentials_or_region_raises_broker_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BrokerError, match="no AWS credentials"):
        start_login("AWS_MSK_IAM", AwsCredentials(""), MSK)
    with pytest.raises(BrokerError, match="cannot begin: ProfileNotFound"):
        start_login("AWS_MSK_IAM", AwsCredentials("other"), MSK)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with pytest.raises(BrokerError, match="region of broker b1 is unknown"):
        start_login("AWS_MSK_IAM", AwsCredentials(""), "b1")


def test_error_of_kerberos_login_without_gssapi_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(MissingExtraError, match="pip install gssapi"):
        start_login("GSSAPI", Kerberos("kafka", "", ""))


def test_error_of_missing_kafka_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka.protocol.consumer", None)
    with pytest.raises(MissingExtraError, match=r"kafka-python\. .* pip install .*\[kafka\]'"):
        require_kafka()
    with pytest.raises(MissingExtraError, match=r"pip install .*\[kafka\]'"):
        start_login("PLAIN", Password("a", "b"))


class GssapiRecorder(types.ModuleType):
    """Replaces the `gssapi` package and simulates a ticket exchange.

    Records the arguments of the newest security context in `contexts`.
    """

    NameType = types.SimpleNamespace(hostbased_service="service", user="user")
    MechType = types.SimpleNamespace(kerberos="krb5")
    contexts: ClassVar[list[dict[str, Any]]] = []

    class Name:
        def __init__(self, text: str, name_type: str) -> None:
            self.text = f"{name_type}:{text}"

        def canonicalize(self, mechanism: str) -> Self:
            self.text += f":{mechanism}"
            return self

    class SecurityContext:
        def __init__(self, **arguments: object) -> None:
            GssapiRecorder.contexts = [arguments]
            self.complete = False

        def step(self, token: bytes | None) -> bytes:
            self.complete = token is not None
            return b"" if token else b"ticket"

        def unwrap(self, data: bytes) -> types.SimpleNamespace:
            return types.SimpleNamespace(message=data)

        def wrap(self, data: bytes, _: bool) -> types.SimpleNamespace:
            return types.SimpleNamespace(message=b"wrapped " + data)

    @staticmethod
    def Credentials(**arguments: object) -> dict[str, object]:  # noqa: N802  # name in gssapi
        return arguments


@pytest.mark.parametrize(
    ("credentials", "keytab"),
    [(Kerberos("kafka", "", ""), ""), (Kerberos("kafka", "a@B", "/k"), "/k")],
)
def test_kerberos_exchange_completes(
    credentials: Kerberos, keytab: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", GssapiRecorder("gssapi"))
    client = start_login("GSSAPI", credentials, "broker.example")
    (context,) = GssapiRecorder.contexts
    assert context["name"].text == "service:kafka@broker.example:krb5"
    assert context["usage"] == "initiate"
    if keytab:
        assert context["creds"]["name"].text == "user:a@B"
        assert context["creds"]["store"] == {"client_keytab": "/k"}
    else:
        assert context["creds"] is None
    assert client.auth_bytes() == b"ticket"
    client.receive(b"the server's")
    assert client.auth_bytes() == b""
    client.receive(b"\x07\x00\x10\x00")  # the server's security layers and max message size
    answer = client.auth_bytes()  # RFC 4752, 3.1: no security layer, max size, authorization id
    assert answer.startswith(b"wrapped \x01\x00\x10\x00")
    assert client.is_done()
    client.receive(b"")


def test_login_errors_show_only_the_class_of_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> str:
        raise RuntimeError("hunter2")

    monkeypatch.setattr(oauth, "call_callback", fails)
    monkeypatch.setattr("kafka.net.sasl.plain.SaslMechanismPlain.auth_bytes", fails)
    with pytest.raises(BrokerError, match="login by PLAIN cannot go on: RuntimeError") as caught:
        start_login("PLAIN", Password("alice", "hunter2")).auth_bytes()
    assert caught.value.__suppress_context__
