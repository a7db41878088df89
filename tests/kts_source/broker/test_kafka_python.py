"""Tests that private parts of kafka-python have the names and signatures that we rely on."""

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


def test_kafka_python_version_is_3_0() -> None:
    major, minor, *_ = kafka.__version__.split(".")
    assert (major, minor) == ("3", "0")


@pytest.mark.parametrize("name", MECHANISMS)
def test_sasl_mechanism_has_expected_methods(name: str) -> None:
    assert name in SASL_MECHANISMS
    mechanism = get_sasl_mechanism(name)
    assert (
        list(inspect.signature(mechanism).parameters.values())[-1].kind
        is inspect.Parameter.VAR_KEYWORD
    )
    for method in ("auth_bytes", "is_done"):
        assert list(inspect.signature(getattr(mechanism, method)).parameters) == ["self"]
    assert list(inspect.signature(mechanism.receive).parameters) == ["self", "auth_bytes"]


def test_abstract_token_provider_requires_only_the_method_token() -> None:
    assert AbstractTokenProvider.__abstractmethods__ == {"token"}
    with pytest.raises(Exception, match="must implement"):
        SaslMechanismOAuth(sasl_oauth_token_provider=object())


def test_msk_client_has_expected_signature() -> None:
    parameters = inspect.signature(AwsMskIamClient).parameters
    assert set(parameters) == {"host", "access_key", "secret_key", "region", "token"}
    assert callable(AwsMskIamClient.first_message)


def test_gssapi_mechanism_uses_only_fields_that_our_subclass_sets() -> None:
    """The subclass in this product replaces `__init__`, so it must set each field that inherited
    methods use.
    """
    used = set()
    for method in (
        SaslMechanismGSSAPI.auth_bytes,
        SaslMechanismGSSAPI.receive,
        SaslMechanismGSSAPI.is_done,
    ):
        used |= {name for name in method.__code__.co_names if name.startswith(("_", "auth_id"))}
    assert used == {"_is_done", "_is_authenticated", "_client_ctx", "_next_token", "auth_id"}


def test_scram_nonces_are_random() -> None:
    nonces = {ScramClient("a", "b", "SCRAM-SHA-256").nonce for _ in range(3)}
    assert len(nonces) == 3
    assert min(map(len, nonces)) >= 32
