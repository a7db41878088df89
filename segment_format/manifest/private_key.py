"""RSA keys from PEM files, as the storage plugin accepts them.

    -----BEGIN <any label>-----
    base64 of DER: PKCS#8 PrivateKeyInfo, not encrypted  |  SubjectPublicKeyInfo
    -----END <the same label>-----

The plugin ignores the label and reads the content; so does this module. PKCS#1 content is refused
by both.

Source: `io.aiven.kafka.tieredstorage.security.RsaKeyReader`.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NoReturn

from segment_format.errors import DecryptionError

_PEM = re.compile(rb"-----BEGIN ([^\r\n-]*)-----(.*?)-----END \1-----", re.DOTALL)
MAX_PEM_BYTES = 64 << 10
_MAX_KEY_BITS = 16384


class PublicKey:
    """An RSA public key.

    Attributes:
        modulus: n.
        public_exponent: e.
    """

    __slots__ = ("modulus", "public_exponent")

    def __init__(self, modulus: int, public_exponent: int) -> None:
        self.modulus = modulus
        self.public_exponent = public_exponent

    @property
    def size(self) -> int:
        """Bytes of the modulus, and of every ciphertext."""
        return (self.modulus.bit_length() + 7) // 8

    def encrypt_raw(self, message: int) -> int:
        """Plain RSA, without padding."""
        return pow(message, self.public_exponent, self.modulus)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.modulus.bit_length()} bits)"


class PrivateKey:
    """An RSA private key that never shows its numbers: `repr` and `str` give its length and `***`.

    It can be pickled (workers need it) and then *is* in the pickle in clear: only a container that
    is meant for secrets may carry it.
    """

    __slots__ = ("_crt", "_modulus", "_public_exponent")

    def __init__(
        self, *, modulus: int, public_exponent: int, crt: tuple[int, int, int, int, int]
    ) -> None:
        """Args are n, e and (p, q, d mod p−1, d mod q−1, q⁻¹ mod p)."""
        self._modulus = modulus
        self._public_exponent = public_exponent
        self._crt = crt

    @property
    def size(self) -> int:
        """Bytes of the modulus, and of every ciphertext."""
        return (self._modulus.bit_length() + 7) // 8

    @property
    def public_key(self) -> PublicKey:
        """The public half."""
        return PublicKey(self._modulus, self._public_exponent)

    def decrypt_raw(self, ciphertext: int) -> int:
        """Plain RSA by the Chinese remainder theorem, without padding.

        Raises:
            ValueError: The number is not below the modulus.
        """
        if not 0 <= ciphertext < self._modulus:
            raise ValueError("ciphertext is not below the modulus")
        p, q, dp, dq, q_inverse = self._crt
        by_q = pow(ciphertext, dq, q)
        by_p = pow(ciphertext, dp, p)
        return by_q + (by_p - by_q) * q_inverse % p * q

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrivateKey) and self._modulus == other._modulus

    def __hash__(self) -> int:
        return hash((self._modulus, self._public_exponent))

    def __repr__(self) -> str:
        return f"PrivateKey({self._modulus.bit_length()} bits, ***)"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self._modulus, self._public_exponent, self._crt)


def _rebuild(modulus: int, exponent: int, crt: tuple[int, int, int, int, int]) -> PrivateKey:
    return PrivateKey(modulus=modulus, public_exponent=exponent, crt=crt)


def load_private_key(pem: bytes) -> PrivateKey:
    """The RSA private key in a PEM file (any label, unencrypted PKCS#8 inside).

    Raises:
        DecryptionError: Not such a file; the text says what it seems to be and never quotes it.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import (
        load_der_private_key,
    )

    der, label = _der(pem, "private key")
    shape = _shape(der)
    if shape == b"\x02\x02":
        _refuse("private key in PKCS#1 form; convert it: openssl pkcs8 -topk8 -nocrypt")
    if shape.startswith(b"\x30\x04") or b"ENCRYPTED" in label:
        _refuse("encrypted private key; decrypt it: openssl pkcs8 -topk8 -nocrypt")
    if not shape.startswith(b"\x02\x30"):
        _refuse("private key file that does not hold PKCS#8")
    try:
        key = load_der_private_key(der, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        _refuse("private key file that does not hold PKCS#8")
    if not isinstance(key, RSAPrivateKey):
        _refuse("private key of another kind than RSA")
    if key.key_size > _MAX_KEY_BITS:
        _refuse(f"private key of {key.key_size} bits")
    numbers = key.private_numbers()
    public = numbers.public_numbers
    return PrivateKey(
        modulus=public.n,
        public_exponent=public.e,
        crt=(numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp),
    )


def load_public_key(pem: bytes) -> PublicKey:
    """The RSA public key in a PEM file (any label, SubjectPublicKeyInfo inside), for writers.

    Raises:
        DecryptionError: Not such a file.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    der, _ = _der(pem, "public key")
    if not _shape(der).startswith(b"\x30\x03"):
        _refuse("public key file that does not hold SubjectPublicKeyInfo")
    try:
        key = load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        _refuse("public key file that does not hold SubjectPublicKeyInfo")
    if not isinstance(key, RSAPublicKey):
        _refuse("public key of another kind than RSA")
    numbers = key.public_numbers()
    return PublicKey(numbers.n, numbers.e)


def _refuse(what: str) -> NoReturn:
    # No cause: messages of the layers below are not ours to vouch for.
    raise DecryptionError(f"cannot use {what}") from None


def _der(pem: bytes, what: str) -> tuple[bytes, bytes]:
    if len(pem) > MAX_PEM_BYTES:
        _refuse(f"{what} file of {len(pem)} bytes")
    match = _PEM.search(pem)
    if match is None:
        _refuse(f"{what} file that is not PEM")
    label, body = match.groups()
    if b":" in body:
        _refuse(f"{what} file with PEM headers (an encrypted PKCS#1 key?)")
    try:
        return base64.b64decode(b"".join(body.split()), validate=True), label
    except binascii.Error:
        _refuse(f"{what} file whose content is not base64")


def _shape(der: bytes) -> bytes:
    """Tags of the first two members of the outer sequence: what kind of key structure it is."""
    tags = bytearray()
    position = _content(der, 0) if der[:1] == b"\x30" else len(der)
    while len(tags) < 2 and position < len(der):
        tags.append(der[position])
        start = _content(der, position)
        position = start + _length(der, position)
    return bytes(tags)


def _content(der: bytes, position: int) -> int:
    first = der[position + 1] if position + 1 < len(der) else 0
    return position + 2 + (first & 0x7F if first & 0x80 else 0)


def _length(der: bytes, position: int) -> int:
    first = der[position + 1] if position + 1 < len(der) else 0
    if not first & 0x80:
        return first
    return int.from_bytes(der[position + 2 : position + 2 + (first & 0x7F)], "big")
