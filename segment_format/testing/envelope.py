"""Encryption as the storage plugin does it: a data key per segment, wrapped with an RSA public key.

    message      12-byte IV, ciphertext, 16-byte tag: AES-256-GCM with the segment's AAD
    wrapped key  RSA-OAEP of the 32-byte data key, SHA3-512 for the label hash and for MGF1, no
    label

The wrap is RFC 8017 §7.1.1 written out, because `cryptography` refuses OAEP with SHA-3.
Source: `io.aiven.kafka.tieredstorage.security.RsaEncryptionProvider`, `AesEncryptionProvider`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DATA_KEY_BYTES = 32
AAD_BYTES = 32
IV_BYTES = 12
MESSAGE_OVERHEAD = 28

_HASH_BYTES = 64


class SegmentCipher:
    """Encrypts the chunks and index blobs of one segment under a fresh data key.

    Args:
        key_id: Id of the RSA key pair, written before the wrapped key.
        public_key_pem: SubjectPublicKeyInfo in PEM.
        random_bytes: Source of the data key, the AAD, the OAEP seed and one IV per message, asked
            in this order; a fixed one makes the output repeatable.
    """

    def __init__(
        self,
        key_id: str,
        public_key_pem: bytes,
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._random_bytes = random_bytes
        data_key = random_bytes(DATA_KEY_BYTES)
        self._aad = random_bytes(AAD_BYTES)
        self._aes = AESGCM(data_key)
        wrapped = wrap_data_key(data_key, public_key_pem, seed=random_bytes(_HASH_BYTES))
        self._data_key_text = f"{key_id}:{base64.b64encode(wrapped).decode()}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def manifest_member(self) -> dict[str, str]:
        """The manifest's `encryption` object."""
        return {"dataKey": self._data_key_text, "aad": base64.b64encode(self._aad).decode()}

    def encrypt(self, plain: bytes) -> bytes:
        """One message: IV, ciphertext, tag; 28 bytes longer than `plain`."""
        iv = self._random_bytes(IV_BYTES)
        return iv + self._aes.encrypt(iv, plain, self._aad)


def wrap_data_key(data_key: bytes, public_key_pem: bytes, *, seed: bytes) -> bytes:
    """RSA-OAEP of a data key: as many bytes as the modulus has.

    Args:
        data_key: 32 bytes.
        public_key_pem: SubjectPublicKeyInfo; the label between the dashes may be any.
        seed: 64 random bytes.

    Raises:
        ValueError: Not an RSA key, or one too small for the data key.
    """
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    armour = re.search(rb"-----BEGIN[^-]*-----(.+?)-----END", public_key_pem, re.DOTALL)
    if armour is None:
        raise ValueError("not a PEM file")
    key = load_der_public_key(base64.b64decode(b"".join(armour[1].split())))
    if not isinstance(key, RSAPublicKey):
        raise ValueError("not an RSA public key")
    numbers = key.public_numbers()
    size = (key.key_size + 7) // 8
    padding = size - len(data_key) - 2 * _HASH_BYTES - 2
    if padding < 0:
        raise ValueError(f"an RSA key of {key.key_size} bits is too small for OAEP with SHA3-512")
    block = hashlib.sha3_512(b"").digest() + bytes(padding) + b"\x01" + data_key
    masked_block = _xor(block, _mgf1(seed, len(block)))
    masked_seed = _xor(seed, _mgf1(masked_block, _HASH_BYTES))
    message = int.from_bytes(b"\x00" + masked_seed + masked_block, "big")
    return pow(message, numbers.e, numbers.n).to_bytes(size, "big")


def _mgf1(seed: bytes, length: int) -> bytes:
    rounds = -(-length // _HASH_BYTES)
    blocks = (hashlib.sha3_512(seed + count.to_bytes(4, "big")).digest() for count in range(rounds))
    return b"".join(blocks)[:length]


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
