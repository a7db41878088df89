"""The plugin's envelope encryption: an AES-256 data key per segment, wrapped with RSA.

    message      IV (12 bytes) ‖ ciphertext ‖ tag (16 bytes), AES-256-GCM; one a chunk and one a
                 side file
    AAD          32 random bytes a segment, in the manifest; it binds neither chunk number nor
                 object
    wrapped key  "<key pair id>:<standard base64 of RSA-OAEP(data key)>"
    OAEP         hash SHA3-512, MGF1 with SHA3-512, empty label (RFC 8017 §7.1)

`cryptography` refuses SHA-3 in OAEP, so the padding is done here around plain RSA. Plain `pow` does
not take the same time for every key; whoever can time these calls closely from outside could learn
about the key. Unwrapping happens once a segment in a batch job, never on request of a stranger, and
needs no protection against that.

Source: `io.aiven.kafka.tieredstorage.security.RsaEncryptionProvider`, `AesEncryptionProvider`,
`DataKeyAndAAD`.

RSA keys from PEM files, as the storage plugin accepts them.

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
import functools
import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from segment_format.errors import DecryptionError, InvalidManifestError
from segment_format.reused_memory import writable_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


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


__all__ = [
    "AES_OVERHEAD",
    "DATA_KEY_SIZE",
    "Encryption",
    "PrivateKey",
    "PublicKey",
    "WrappedDataKey",
    "decrypt",
    "encrypt",
    "load_private_key",
    "load_public_key",
    "unwrap_data_key",
    "wrap_data_key",
]

DATA_KEY_SIZE = 32
IV_SIZE = 12
TAG_SIZE = 16
AES_OVERHEAD = IV_SIZE + TAG_SIZE
_HASH_SIZE = 64
_EMPTY_LABEL_HASH = hashlib.sha3_512(b"").digest()
# RSA keys of 64 KiB do not exist; a bound keeps a hostile manifest from costing a hash per
# kilobyte.
_MAX_WRAPPED_SIZE = 8192


@dataclass(frozen=True, slots=True)
class WrappedDataKey:
    """A data key that only the holder of a private key can read; no secret.

    Attributes:
        key_id: Which key pair wrapped it.
        ciphertext: RSA-OAEP ciphertext, as long as the modulus.
    """

    key_id: str
    ciphertext: bytes

    @classmethod
    def from_text(cls, text: str) -> WrappedDataKey:
        """Parses `<key pair id>:<base64>`.

        Raises:
            InvalidManifestError: Not exactly one colon, a blank id, no key bytes, or not base64.
        """
        key_id, colon, encoded = text.partition(":")
        if not colon or ":" in encoded:
            raise InvalidManifestError("data key is not of the form <key pair id>:<base64>")
        if not key_id.strip():
            raise InvalidManifestError("data key with a blank key pair id")
        if len(encoded) > _MAX_WRAPPED_SIZE * 4 // 3 + 4:
            raise InvalidManifestError(f"data key of {len(encoded)} characters")
        try:
            ciphertext = base64.b64decode(encoded, validate=True)
        except ValueError as error:  # binascii.Error is one
            raise InvalidManifestError(
                f"data key wrapped with {key_id[:80]!r} is not base64"
            ) from error
        if not ciphertext:
            raise InvalidManifestError(f"empty data key wrapped with {key_id[:80]!r}")
        return cls(key_id, ciphertext)

    def to_text(self) -> str:
        """The text that stands in a manifest.

        Raises:
            InvalidManifestError: The id is blank or holds a colon, or there are no key bytes.
        """
        text = f"{self.key_id}:{base64.b64encode(self.ciphertext).decode('ascii')}"
        WrappedDataKey.from_text(text)
        return text


@dataclass(frozen=True, slots=True)
class Encryption:
    """The `encryption` member of a manifest.

    Attributes:
        data_key: The segment's data key, wrapped.
        aad: Additional authenticated data of every message of the segment.
    """

    data_key: WrappedDataKey
    aad: bytes


def unwrap_data_key(wrapped: WrappedDataKey, private_key: PrivateKey) -> bytes:
    """The AES data key of a segment, 32 bytes. One RSA operation: cache the result per segment.

    Raises:
        DecryptionError: `private_key` is not the one that `wrapped` was made for, or the text was
            changed.
    """
    failure = f"data key does not open with the private key given for {wrapped.key_id[:80]!r}"
    size = private_key.public_key.size
    if size < 2 * _HASH_SIZE + 2:
        raise DecryptionError(f"{failure}: the key is too short")
    if len(wrapped.ciphertext) != size:
        raise DecryptionError(
            f"{failure}: {len(wrapped.ciphertext)} bytes wrapped, the key makes {size}"
        )
    try:
        encoded = private_key.decrypt_raw(int.from_bytes(wrapped.ciphertext, "big"))
    except ValueError:
        raise DecryptionError(failure) from None
    data_key = _oaep_decode(encoded.to_bytes(size, "big"))
    if data_key is None:
        raise DecryptionError(failure)
    if len(data_key) != DATA_KEY_SIZE:
        raise DecryptionError(
            f"data key of {len(data_key)} bytes, {DATA_KEY_SIZE} expected (AES-256)"
        )
    return data_key


def wrap_data_key(data_key: bytes, *, key_id: str, public_key: PublicKey) -> WrappedDataKey:
    """Wraps a data key for the holder of the private key.

    Args:
        data_key: 32 bytes.
        key_id: Id under which readers find the private key.
        public_key: RSA key of at least 1296 bits.

    Raises:
        ValueError: The data key has another length, or the RSA key is too short.
    """
    if len(data_key) != DATA_KEY_SIZE:
        raise ValueError(f"a data key has {DATA_KEY_SIZE} bytes")
    size = public_key.size
    padding = size - 2 * _HASH_SIZE - 2 - len(data_key)
    if padding < 0:
        raise ValueError(f"an RSA key of {8 * size} bits is too short for OAEP with SHA3-512")
    block = _EMPTY_LABEL_HASH + bytes(padding) + b"\1" + data_key
    seed = os.urandom(_HASH_SIZE)
    masked_block = _xor(block, _mgf1(seed, len(block)))
    masked_seed = _xor(seed, _mgf1(masked_block, _HASH_SIZE))
    message = int.from_bytes(masked_seed + masked_block, "big")
    return WrappedDataKey(key_id, public_key.encrypt_raw(message).to_bytes(size, "big"))


def decrypt(
    message: bytes | memoryview, *, data_key: bytes, aad: bytes, key_id: str | None = None
) -> memoryview:
    """The plaintext of one AES-GCM message.

    Args:
        message: IV, ciphertext and tag: at least 28 bytes.
        data_key: 32 bytes.
        aad: Additional authenticated data of the segment.
        key_id: Only for the error's text.

    Returns:
        `len(message) - 28` bytes, where `cryptography` allows it in memory that is used again once
        the view is gone.

    Raises:
        DecryptionError: The message does not authenticate: wrong key, or changed bytes.
    """
    from cryptography.exceptions import InvalidTag

    view = memoryview(message)
    if len(view) < AES_OVERHEAD:
        raise DecryptionError(f"encrypted message of {len(view)} bytes, at least {AES_OVERHEAD}")
    cipher = _cipher(data_key)
    iv, sealed = view[:IV_SIZE], view[IV_SIZE:]
    try:
        if not hasattr(cipher, "decrypt_into"):  # came with cryptography 47
            return memoryview(cipher.decrypt(iv, sealed, aad))
        plaintext = writable_bytes(len(view) - AES_OVERHEAD)
        cipher.decrypt_into(iv, sealed, aad, plaintext)
    except InvalidTag:
        named = "" if key_id is None else f" (data key wrapped with {key_id[:80]!r})"
        raise DecryptionError(
            f"encrypted message does not authenticate: wrong key, or changed bytes{named}"
        ) from None
    return plaintext.toreadonly()


def encrypt(
    plaintext: bytes | memoryview, *, data_key: bytes, aad: bytes, iv: bytes | None = None
) -> bytes:
    """One AES-GCM message: IV, ciphertext and tag.

    Args:
        plaintext: Any number of bytes.
        data_key: 32 bytes.
        aad: Additional authenticated data of the segment.
        iv: 12 bytes that were never used with this key; fresh random ones by default.
    """
    nonce = os.urandom(IV_SIZE) if iv is None else iv
    if len(nonce) != IV_SIZE:
        raise ValueError(f"an IV has {IV_SIZE} bytes")
    return nonce + _cipher(data_key).encrypt(nonce, plaintext, aad)


@functools.lru_cache(maxsize=16)
def _cipher(data_key: bytes) -> AESGCM:
    # Key expansion and the OpenSSL object are set up once a segment, not once a chunk.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(data_key) != DATA_KEY_SIZE:
        raise DecryptionError(f"data key of {len(data_key)} bytes, {DATA_KEY_SIZE} expected")
    return AESGCM(data_key)


def _oaep_decode(encoded: bytes) -> bytes | None:
    """Undoes OAEP; None for every kind of mistake, so that the error cannot tell them apart."""
    masked_seed, masked_block = encoded[1 : 1 + _HASH_SIZE], encoded[1 + _HASH_SIZE :]
    seed = _xor(masked_seed, _mgf1(masked_block, _HASH_SIZE))
    block = _xor(masked_block, _mgf1(seed, len(masked_block)))
    padding, separator, message = block[_HASH_SIZE:].partition(b"\1")
    label_matches = hmac.compare_digest(block[:_HASH_SIZE], _EMPTY_LABEL_HASH)
    if encoded[0] or not label_matches or not separator or padding.strip(b"\0"):
        return None
    return message


def _mgf1(seed: bytes, size: int) -> bytes:
    blocks = (
        hashlib.sha3_512(seed + counter.to_bytes(4, "big")).digest()
        for counter in range(-(-size // _HASH_SIZE))
    )
    return b"".join(blocks)[:size]


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(len(left), "big")
