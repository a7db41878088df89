"""The `kafka.*` options of security, checked; the files of TLS are read and opened here.

Names come without `kafka.`, and errors put it back. No error shows a value or a path.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.broker.kafka_table import PREFIX
from kts_source.broker.key_stores import (
    JKS,
    PEM,
    PKCS12,
    KeyStoreError,
    key_entry,
    pem_certificates,
    pem_key,
    trusted_certificates,
)
from kts_source.broker.login_options import login_from
from kts_source.broker.settings import (
    GSSAPI,
    MECHANISMS,
    PLAINTEXT,
    PROTOCOLS,
    TLS_1_2,
    TLS_1_3,
    Security,
    Tls,
)
from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_FILE_BYTES: Final = 16 << 20
_OLDER_VERSIONS: Final = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")


def security_from(given: Mapping[str, str]) -> tuple[Security, frozenset[str]]:
    """What protects connections, and the names of options that the protocol leaves without effect.

    Args:
        given: Name in lower case, without `kafka.`, to text; none of them refused.

    Raises:
        InvalidOptionError: Malformed, missing or contradictory options, or a file that cannot be
            opened.
    """
    of_tls = frozenset(name for name in given if name.startswith("ssl."))
    of_sasl = frozenset(name for name in given if name.startswith("sasl."))
    if "security.protocol" not in given and (of_tls or of_sasl):
        raise _invalid(
            min(of_tls | of_sasl),
            f"needs {PREFIX}security.protocol, which else is {PLAINTEXT}: SSL, SASL_PLAINTEXT or"
            " SASL_SSL",
        )
    protocol = _choice(given, "security.protocol", PLAINTEXT, PROTOCOLS)
    tls, mechanism, login = None, "", None
    idle: frozenset[str] = frozenset()
    if protocol.startswith("SASL"):
        mechanism = _choice(given, "sasl.mechanism", GSSAPI, MECHANISMS)
        login = login_from(given, mechanism, protocol)
    else:
        idle |= of_sasl
    if protocol.endswith("SSL"):
        tls = _tls(given)
    else:
        idle |= of_tls
    security = Security(protocol, tls, mechanism, login)
    if tls is not None:
        # Not at import time: `ssl` is of no use to who reads no brokers.
        from kts_source.broker.tls import ssl_context

        ssl_context(security)  # a key that is not the certificate's fails here, not in tasks
    return security, idle


def _tls(given: Mapping[str, str]) -> Tls:
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("", "https"):
        raise _invalid("ssl.endpoint.identification.algorithm", "must be https, or empty")
    oldest, newest = _versions(given)
    chain, key = _identity(given)
    return Tls(_trusted(given), chain, key, algorithm == "https", oldest, newest)


def _versions(given: Mapping[str, str]) -> tuple[str, str]:
    name = "ssl.enabled.protocols"
    known = (TLS_1_2, TLS_1_3)
    texts = [text.strip() for text in given.get(name, ",".join(known)).split(",")]
    if not all(text in known or text in _OLDER_VERSIONS for text in texts):
        raise _invalid(name, f"must be {TLS_1_2}, {TLS_1_3} or both, separated by a comma")
    allowed = [version for version in known if version in texts]
    if _choice(given, "ssl.protocol", TLS_1_3, ("TLS", *known)) == TLS_1_2:
        allowed = [version for version in allowed if version == TLS_1_2]
    if not allowed:
        raise _invalid(name, f"and {PREFIX}ssl.protocol must leave {TLS_1_2} or {TLS_1_3}")
    return allowed[0], allowed[-1]


def _trusted(given: Mapping[str, str]) -> tuple[bytes, ...]:
    place, inline, word = (
        f"ssl.truststore.{last}" for last in ("location", "certificates", "password")
    )
    kind = _kind(given, "ssl.truststore.type")
    password = given.get(word)
    if inline in given:
        _check_inline(given, inline, place, "ssl.truststore.type", kind)
    if kind == PEM and password is not None:
        raise _invalid(word, "has no meaning with PEM: leave it out")
    if place not in given and password is not None:
        raise _invalid(word, f"needs {PREFIX}{place}")
    try:
        if inline in given:
            return pem_certificates(given[inline])
        if place not in given:
            return ()
        data = _file(given, place)
        if kind == PEM:
            return pem_certificates(_text(data))
        return trusted_certificates(data, password)
    except KeyStoreError as error:
        raise _invalid(inline if inline in given else place, str(error)) from None


def _identity(given: Mapping[str, str]) -> tuple[tuple[bytes, ...], bytes]:
    """Our chain and key; empty where there is none."""
    place, key, chain, word = (
        f"ssl.keystore.{last}" for last in ("location", "key", "certificate.chain", "password")
    )
    kind = _kind(given, "ssl.keystore.type")
    password = given.get(word)
    for one, other in ((key, chain), (chain, key)):
        if one in given:
            _check_inline(given, one, place, "ssl.keystore.type", kind)
            if other not in given:
                raise _invalid(one, f"needs {PREFIX}{other}")
    if kind == PEM and password is not None:
        raise _invalid(word, f"has no meaning with PEM: give {PREFIX}ssl.key.password")
    if place not in given and password is not None:
        raise _invalid(word, f"needs {PREFIX}{place}")
    if place in given and kind != PEM and password is None:
        raise _invalid(place, f"needs {PREFIX}{word}")
    concerned = place
    try:
        if key in given:
            concerned = chain
            certificates = pem_certificates(given[chain])
            concerned = key
            return certificates, pem_key(given[key], given.get("ssl.key.password"))
        if place not in given:
            return (), b""
        data = _file(given, place)
        if kind == PEM:
            text = _text(data)
            return pem_certificates(text), pem_key(text, given.get("ssl.key.password"))
        assert password is not None
        entry = key_entry(data, password)
    except KeyStoreError as error:
        raise _invalid(concerned, str(error)) from None
    return entry.chain, entry.key


def _check_inline(
    given: Mapping[str, str], name: str, place: str, type_name: str, kind: str
) -> None:
    if kind != PEM:
        raise _invalid(name, f"needs {PREFIX}{type_name} PEM")
    if place in given:
        raise _invalid(name, f"and {PREFIX}{place} mean the same: give one")


def _kind(given: Mapping[str, str], name: str) -> str:
    return _choice(given, name, JKS, (JKS, PKCS12, PEM))


def _file(given: Mapping[str, str], name: str) -> bytes:
    text = given[name]
    if "-----BEGIN" in text:
        raise _invalid(name, "is a path; PEM itself goes into the options beside it")
    path = Path(text)
    try:
        if not path.is_file():
            raise _invalid(name, "names no file on the driver")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _invalid(name, f"names a file that cannot be read: {reason}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise _invalid(name, f"names a file of more than {_MAX_FILE_BYTES >> 20} MiB")
    return data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise KeyStoreError("is no PEM: it is not text") from None


def _choice(given: Mapping[str, str], name: str, default: str, choices: tuple[str, ...]) -> str:
    by_upper = {choice.upper(): choice for choice in choices}
    choice = by_upper.get(given.get(name, default).strip().upper())
    if choice is None:
        raise _invalid(name, f"must be {', '.join(choices[:-1])} or {choices[-1]}")
    return choice


def _invalid(name: str, problem: str) -> InvalidOptionError:
    return InvalidOptionError(f"option '{PREFIX}{name}' {problem}")
