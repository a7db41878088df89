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
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format.errors import DecryptionError, InvalidManifestError
from segment_format.manifest.private_key import (
    PrivateKey,
    PublicKey,
    load_private_key,
    load_public_key,
)
from segment_format.reused_memory import writable_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

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
