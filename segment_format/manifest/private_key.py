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
from dataclasses import dataclass, field
from typing import NoReturn

from segment_format.errors import DecryptionError

_PEM = re.compile(rb"-----BEGIN ([^\r\n-]*)-----(.*?)-----END \1-----", re.DOTALL)
MAX_PEM_BYTES = 64 << 10
_MAX_KEY_BITS = 16384
# How the object ids of all RSA algorithms begin. PKCS#8 and SubjectPublicKeyInfo name one; PKCS#1,
# which `cryptography` reads as well, is bare numbers.
_RSA_ALGORITHM = bytes.fromhex("2a864886f70d0101")
_HEAD_BYTES = 40


@dataclass(frozen=True, slots=True, repr=False)
class PublicKey:
    """An RSA public key.

    Attributes:
        modulus: n.
        public_exponent: e.
    """

    modulus: int
    public_exponent: int

    @property
    def size(self) -> int:
        """Bytes of the modulus, and of every ciphertext."""
        return (self.modulus.bit_length() + 7) // 8

    def encrypt_raw(self, message: int) -> int:
        """Plain RSA, without padding."""
        return pow(message, self.public_exponent, self.modulus)

    def __repr__(self) -> str:
        return f"PublicKey({self.modulus.bit_length()} bits)"


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """An RSA private key that never shows its numbers: `repr` and `str` give its length and `***`.

    It can be pickled (workers need it) and then *is* in the pickle in clear: only a container that
    is meant for secrets may carry it.

    Attributes:
        public_key: The public half.
    """

    public_key: PublicKey
    _crt: tuple[int, int, int, int, int] = field(compare=False)  # p, q, d mod p−1, d mod q−1, q⁻¹

    def decrypt_raw(self, ciphertext: int) -> int:
        """Plain RSA by the Chinese remainder theorem, without padding.

        Raises:
            ValueError: The number is not below the modulus.
        """
        if not 0 <= ciphertext < self.public_key.modulus:
            raise ValueError("ciphertext is not below the modulus")
        p, q, dp, dq, q_inverse = self._crt
        by_q = pow(ciphertext, dq, q)
        by_p = pow(ciphertext, dp, p)
        return by_q + (by_p - by_q) * q_inverse % p * q

    def __repr__(self) -> str:
        return f"PrivateKey({self.public_key.modulus.bit_length()} bits, ***)"


def load_private_key(pem: bytes) -> PrivateKey:
    """The RSA private key in a PEM file (any label, unencrypted PKCS#8 inside).

    Raises:
        DecryptionError: Not such a file; the text says what it seems to be and never quotes it.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    der = _der(pem, "private key")
    try:
        key = load_der_private_key(der, password=None)
    except TypeError:
        _refuse("encrypted private key; decrypt it: openssl pkcs8 -topk8 -nocrypt")
    except (ValueError, UnsupportedAlgorithm):
        _refuse("private key file that does not hold PKCS#8")
    if not isinstance(key, RSAPrivateKey):
        _refuse("private key of another kind than RSA")
    if _RSA_ALGORITHM not in der[:_HEAD_BYTES]:
        _refuse("private key in PKCS#1 form; convert it: openssl pkcs8 -topk8 -nocrypt")
    if key.key_size > _MAX_KEY_BITS:
        _refuse(f"private key of {key.key_size} bits")
    numbers = key.private_numbers()
    public = PublicKey(numbers.public_numbers.n, numbers.public_numbers.e)
    crt = numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp
    return PrivateKey(public, crt)


def load_public_key(pem: bytes) -> PublicKey:
    """The RSA public key in a PEM file (any label, SubjectPublicKeyInfo inside), for writers.

    Raises:
        DecryptionError: Not such a file.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    der = _der(pem, "public key")
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        _refuse("public key file that does not hold SubjectPublicKeyInfo")
    if not isinstance(key, RSAPublicKey):
        _refuse("public key of another kind than RSA")
    if _RSA_ALGORITHM not in der[:_HEAD_BYTES]:
        _refuse("public key file that does not hold SubjectPublicKeyInfo")
    numbers = key.public_numbers()
    return PublicKey(numbers.n, numbers.e)


def _refuse(what: str) -> NoReturn:
    # No cause: messages of the layers below are not ours to vouch for.
    raise DecryptionError(f"cannot use {what}") from None


def _der(pem: bytes, what: str) -> bytes:
    if len(pem) > MAX_PEM_BYTES:
        _refuse(f"{what} file of {len(pem)} bytes")
    match = _PEM.search(pem)
    if match is None:
        _refuse(f"{what} file that is not PEM")
    body = match[2]
    if b":" in body:
        _refuse(f"{what} file with PEM headers (an encrypted PKCS#1 key?)")
    try:
        return base64.b64decode(b"".join(body.split()), validate=True)
    except binascii.Error:
        _refuse(f"{what} file whose content is not base64")
