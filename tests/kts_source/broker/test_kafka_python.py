"""What the product leans on in kafka-python, which promises none of it: names and signatures."""

from __future__ import annotations

import inspect

import kafka
import pytest
from kafka.net.sasl import SASL_MECHANISMS, get_sasl_mechanism
from kafka.net.sasl.gssapi import SaslMechanismGSSAPI
from kafka.net.sasl.msk import AwsMskIamClient
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth
from kafka.net.sasl.scram import ScramClient

from kts_source.broker.settings import MECHANISMS


def test_tls_version_is_an_allowed_one() -> None:
    major, minor, *_ = kafka.__version__.split(".")
    assert (major, minor) == ("3", "0")


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms(name: str) -> None:
    assert name in SASL_MECHANISMS
    found = get_sasl_mechanism(name)
    assert (
        list(inspect.signature(found).parameters.values())[-1].kind is inspect.Parameter.VAR_KEYWORD
    )
    for method in ("auth_bytes", "is_done"):
        assert list(inspect.signature(getattr(found, method)).parameters) == ["self"]
    assert list(inspect.signature(found.receive).parameters) == ["self", "auth_bytes"]


def test_tokens() -> None:
    assert AbstractTokenProvider.__abstractmethods__ == {"token"}
    with pytest.raises(Exception, match="must implement"):
        SaslMechanismOAuth(sasl_oauth_token_provider=object())


def test_the_client_of_msk() -> None:
    parameters = inspect.signature(AwsMskIamClient).parameters
    assert set(parameters) == {"host", "access_key", "secret_key", "region", "token"}
    assert callable(AwsMskIamClient.first_message)


def test_the_fields_of_kerberos_s_exchange() -> None:
    """Its methods go on with what our `__init__` sets."""
    used = set()
    for method in (
        SaslMechanismGSSAPI.auth_bytes,
        SaslMechanismGSSAPI.receive,
        SaslMechanismGSSAPI.is_done,
    ):
        used |= {name for name in method.__code__.co_names if name.startswith(("_", "auth_id"))}
    assert used == {"_is_done", "_is_authenticated", "_client_ctx", "_next_token", "auth_id"}


def test_nonces_of_scram_are_random() -> None:
    nonces = {ScramClient("a", "b", "SCRAM-SHA-256").nonce for _ in range(3)}
    assert len(nonces) == 3
    assert min(map(len, nonces)) >= 32
