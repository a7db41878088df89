"""Decrypts data of segments that the Aiven plugin encrypted.

The plugin creates an AES-256 data key for each segment. It encrypts the segment with this key, and
encrypts ("wraps") the key with RSA:

    message      IV (12 bytes) ‖ ciphertext ‖ tag (16 bytes), AES-256-GCM; one per chunk and one per
                 side file
    AAD          32 random bytes per segment, stored in the manifest; they contain neither the
                 chunk number nor the name of the object, so neither is authenticated
    wrapped key  "<key pair id>:<standard base64 of RSA-OAEP(data key)>"
    OAEP         hash SHA3-512, MGF1 with SHA3-512, empty label (RFC 8017 §7.1)

    private key  PEM with any label; the content is PKCS#8, not encrypted. PKCS#1 is refused.

`cryptography` refuses SHA-3 in OAEP, so this module decrypts with RSA without padding and then
removes the OAEP padding itself. The RSA decryption uses `pow`, which does not run in constant time.
This is acceptable: a batch job unwraps one key per segment, and an attacker can neither request
this nor measure its time.

Source: `RsaEncryptionProvider`, `AesEncryptionProvider`, `DataKeyAndAAD`, `RsaKeyReader` in
`io.aiven.kafka.tieredstorage.security`.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
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
# Prefix of the object ids of all RSA algorithms. A PKCS#8 key contains such an id. A PKCS#1 key,
# which `cryptography` accepts as well, does not.
_RSA_ALGORITHM = bytes.fromhex("2a864886f70d0101")
_HEAD_BYTES = 40


@dataclass(frozen=True, slots=True, repr=False)
class PublicKey:
    """The public half of an RSA key."""

    modulus: int
    public_exponent: int

    @property
    def size(self) -> int:
        """Size in bytes of the modulus, and of every number encrypted with this key."""
        return (self.modulus.bit_length() + 7) // 8

    def __repr__(self) -> str:
        return f"PublicKey({self.modulus.bit_length()} bits)"


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """An RSA private key; `repr` shows only its length.

    A pickle of this object contains the key in clear text. Do not store or print the pickle.
    """

    public_key: PublicKey
    _crt: tuple[int, int, int, int, int] = field(compare=False)  # p, q, d mod p−1, d mod q−1, q⁻¹

    def decrypt_raw(self, ciphertext: int) -> int:
        """Returns the RSA decryption of `ciphertext`, including any padding.

        Uses the Chinese remainder theorem, which is faster than one exponentiation.

        Raises:
            ValueError: `ciphertext` is not below the modulus.
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
    """Returns the RSA private key of a PEM file. The file may have any label, but must contain
    PKCS#8 that is not encrypted.

    Raises:
        DecryptionError: The file does not contain such a key. The message never quotes the file.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    der = _der(pem, "private key")
    try:
        key = load_der_private_key(der, password=None)
    except TypeError:
        _refuse("the private key: it is encrypted. Decrypt it: openssl pkcs8 -topk8 -nocrypt")
    except (ValueError, UnsupportedAlgorithm):
        _refuse("the private key file: it is not PKCS#8")
    if not isinstance(key, RSAPrivateKey):
        _refuse("the private key: it is not an RSA key")
    if _RSA_ALGORITHM not in der[:_HEAD_BYTES]:
        _refuse("the private key: it is PKCS#1. Convert it: openssl pkcs8 -topk8 -nocrypt")
    if key.key_size > _MAX_KEY_BITS:
        _refuse(
            f"the private key: it has {key.key_size} bits; at most {_MAX_KEY_BITS} are supported"
        )
    numbers = key.private_numbers()
    public = PublicKey(numbers.public_numbers.n, numbers.public_numbers.e)
    crt = numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp
    return PrivateKey(public, crt)


def _refuse(what: str) -> NoReturn:
    # `from None`, because the messages of `cryptography` could quote the key.
    raise DecryptionError(f"cannot use {what}") from None


def _der(pem: bytes, what: str) -> bytes:
    if len(pem) > MAX_PEM_BYTES:
        _refuse(
            f"the {what} file: it has {len(pem)} bytes, but at most {MAX_PEM_BYTES} are supported"
        )
    match = _PEM.search(pem)
    if match is None:
        _refuse(f"the {what} file: it is not PEM")
    body = match[2]
    if b":" in body:
        _refuse(f"the {what} file: it has PEM headers, so it may be an encrypted PKCS#1 key")
    try:
        return base64.b64decode(b"".join(body.split()), validate=True)
    except binascii.Error:
        _refuse(f"the {what} file: its content is not base64")


DATA_KEY_SIZE = 32
IV_SIZE = 12
TAG_SIZE = 16
AES_OVERHEAD = IV_SIZE + TAG_SIZE
_HASH_SIZE = 64
_EMPTY_LABEL_HASH = hashlib.sha3_512(b"").digest()
# Limits the work that a hostile manifest can cause. No RSA key has a modulus of this many bytes.
_MAX_WRAPPED_SIZE = 8192


@dataclass(frozen=True, slots=True)
class WrappedDataKey:
    """A data key that is encrypted with RSA-OAEP, and therefore not secret.

    Attributes:
        ciphertext: The encrypted data key; has as many bytes as the RSA modulus.
    """

    key_id: str
    ciphertext: bytes

    @classmethod
    def from_text(cls, text: str) -> WrappedDataKey:
        """Parses the text `<key pair id>:<base64>` of a manifest.

        Raises:
            InvalidManifestError: The text does not have this form.
        """
        key_id, colon, encoded = text.partition(":")
        if not colon or ":" in encoded:
            raise InvalidManifestError("the data key does not have the form <key pair id>:<base64>")
        if not key_id.strip():
            raise InvalidManifestError("the data key has a blank key pair id")
        if len(encoded) > _MAX_WRAPPED_SIZE * 4 // 3 + 4:
            raise InvalidManifestError(f"the data key is too long: {len(encoded)} characters")
        try:
            ciphertext = base64.b64decode(encoded, validate=True)
        except ValueError as error:  # binascii.Error is one
            raise InvalidManifestError(
                f"the data key wrapped with {key_id[:80]!r} is not base64"
            ) from error
        if not ciphertext:
            raise InvalidManifestError(f"the data key wrapped with {key_id[:80]!r} is empty")
        return cls(key_id, ciphertext)

    def to_text(self) -> str:
        """Returns the text `<key pair id>:<base64>` for a manifest.

        Raises:
            InvalidManifestError: The id is blank or has a colon, or the ciphertext is empty.
        """
        text = f"{self.key_id}:{base64.b64encode(self.ciphertext).decode('ascii')}"
        WrappedDataKey.from_text(text)
        return text


@dataclass(frozen=True, slots=True)
class Encryption:
    """The `encryption` member of a manifest: the wrapped data key, and the AAD that all messages of
    the segment share.
    """

    data_key: WrappedDataKey
    aad: bytes


def unwrap_data_key(wrapped: WrappedDataKey, private_key: PrivateKey) -> bytes:
    """Decrypts the AES data key of a segment and returns its 32 bytes. Callers should cache the
    result, because this takes milliseconds.

    Raises:
        DecryptionError: `wrapped` was encrypted for another key pair, or was changed.
    """
    failure = (
        f"the data key cannot be decrypted with the private key of key pair {wrapped.key_id[:80]!r}"
    )
    size = private_key.public_key.size
    if size < 2 * _HASH_SIZE + 2:
        raise DecryptionError(f"{failure}: the RSA key is too short for OAEP with SHA3-512")
    if len(wrapped.ciphertext) != size:
        raise DecryptionError(
            f"{failure}: the wrapped key has {len(wrapped.ciphertext)} bytes, but this RSA key "
            f"produces {size} bytes"
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
            f"the data key has {len(data_key)} bytes instead of {DATA_KEY_SIZE} (AES-256)"
        )
    return data_key


def decrypt(message: bytes | memoryview, *, data_key: bytes, aad: bytes) -> memoryview:
    """Decrypts one AES-GCM message.

    Args:
        message: IV, ciphertext and tag: at least 28 bytes.
        data_key: 32 bytes.
        aad: Additional authenticated data of the segment.

    Returns:
        The plaintext, `len(message) - 28` bytes. With `cryptography` 47 or later,
        `segment_format.reused_memory` provides its memory.

    Raises:
        DecryptionError: The message does not authenticate: wrong key, or changed bytes.
    """
    from cryptography.exceptions import InvalidTag

    view = memoryview(message)
    if len(view) < AES_OVERHEAD:
        raise DecryptionError(
            f"an encrypted message has {len(view)} bytes; at least {AES_OVERHEAD} are needed"
        )
    cipher = _cipher(data_key)
    iv, sealed = view[:IV_SIZE], view[IV_SIZE:]
    try:
        if not hasattr(cipher, "decrypt_into"):  # added in cryptography 47
            return memoryview(cipher.decrypt(iv, sealed, aad))
        plaintext = writable_bytes(len(view) - AES_OVERHEAD)
        cipher.decrypt_into(iv, sealed, aad, plaintext)
    except InvalidTag:
        raise DecryptionError(
            "encrypted message does not authenticate: wrong key, or changed bytes"
        ) from None
    return plaintext.toreadonly()


@functools.lru_cache(maxsize=16)
def _cipher(data_key: bytes) -> AESGCM:
    # Cached, so that the AES key is expanded once per segment and not once per chunk.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(data_key) != DATA_KEY_SIZE:
        raise DecryptionError(f"the data key has {len(data_key)} bytes instead of {DATA_KEY_SIZE}")
    return AESGCM(data_key)


def _oaep_decode(encoded: bytes) -> bytes | None:
    """Returns the message inside an OAEP padding, or `None` if the padding is invalid.

    Returns `None` for every kind of invalid padding: an error must not reveal which check failed.
    """
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
