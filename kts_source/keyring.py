"""Private keys for encrypted segments, by the key id that the manifest of a segment names.

Key ids are compared case-insensitively, because they are parts of option names, which Spark passes
in lower case. A key comes from a file, an environment variable, or a user's function that reads a
secret store. The driver reads all keys that it can. A worker reads the files and variables that do
not exist on the driver.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError, UnknownKeyError
from kts_source.secret import Secret, call_callback, is_callback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from segment_format.manifest.encryption import PrivateKey, WrappedDataKey

KEY_SOURCES: Final = ("file", "env", "callback")

KEY_OPTION_PATTERN: Final = re.compile(
    r"encryption\.key\.pairs\.(?P<id>.+)\.private\.key\.(?P<source>file|env|callback)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Maps key ids to private keys or to their locations.

    Attributes:
        places: Key id in lower case -> source and text of its option. The source is `file` with a
            path, `env` with an environment variable, or `callback` with `module:function`.
        pems: Key id in lower case -> PEM bytes, for the keys that were read.
    """

    places: Secret[Mapping[str, tuple[str, str]]] = field(default_factory=lambda: Secret({}))
    pems: Secret[Mapping[str, bytes]] = field(default_factory=lambda: Secret({}))

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KeyRing:
        """Parses options `encryption.key.pairs.<id>.private.key.{file,env,callback}`.

        Raises:
            InvalidOptionError: A key has two sources, or a callback is not written as
                `module:function`.
        """
        sources: dict[str, tuple[str, str]] = {}
        for name, text in options.items():
            match = KEY_OPTION_PATTERN.fullmatch(name)
            if not match:
                continue
            key_id, source = match["id"].lower(), match["source"].lower()
            if key_id in sources and sources[key_id][0] != source:
                raise InvalidOptionError(
                    f"the private key {key_id!r} is given as {sources[key_id][0]} and as {source}:"
                    " remove one of the two options"
                )
            if source == "callback" and not is_callback(text):
                raise InvalidOptionError(f"option {name} must have the form module:function")
            sources[key_id] = source, text
        return cls(Secret(sources))

    def loaded(self) -> KeyRing:
        """Returns a copy of the key ring with the PEM bytes of all keys that this machine can read.

        Raises:
            UnknownKeyError: A callback fails or returns no text.
        """
        pems = dict(self.pems.reveal())
        for key_id in self.key_ids:
            if key_id not in pems and (pem := self._read(key_id)) is not None:
                pems[key_id] = pem
        return KeyRing(self.places, Secret(pems))

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of the keys, in lower case. Ids are not secret."""
        return tuple(sorted(self.places.reveal().keys() | self.pems.reveal().keys()))

    def unwrap(self, wrapped: WrappedDataKey) -> bytes:
        """Decrypts the data key of a segment (32 bytes).

        Raises:
            UnknownKeyError: The key ring has no private key for the id in `wrapped`, or this
                machine cannot read the key.
            DecryptionError: The private key does not decrypt the data key.
        """
        pem = self._pem(wrapped.key_id)
        if pem is None:
            raise self._missing_key(wrapped.key_id)
        return _data_key(wrapped, pem)

    def fingerprint(self, key_id: str) -> str:
        """Returns the SHA-256, in hex, of the public key for a key id; an empty text if the key is
        not available on this machine.

        Raises:
            UnknownKeyError: A callback fails or returns no text.
        """
        pem = self._pem(key_id)
        return "" if pem is None else _fingerprint(pem)

    def _pem(self, key_id: str) -> bytes | None:
        return self.pems.reveal().get(key_id.lower()) or self._read(key_id.lower())

    def _read(self, key_id: str) -> bytes | None:
        """Returns the PEM bytes of a key; `None` if this machine does not have the key."""
        source, text = self.places.reveal().get(key_id, (None, ""))
        if source == "file":
            return Path(text).read_bytes() if Path(text).is_file() else None
        if source == "env":
            return os.environ.get(text, "").encode() or None
        return None if source is None else _call(text, key_id)

    def _missing_key(self, key_id: str) -> UnknownKeyError:
        option = f"encryption.key.pairs.{key_id}.private.key"
        source, _ = self.places.reveal().get(key_id.lower(), (None, ""))
        if source is None:
            held = ", ".join(self.key_ids)
            ring = f"the key ring has {held}" if held else "no private key is configured"
            return UnknownKeyError(
                f"the segment is encrypted with key id {key_id!r}, and {ring}. Set option"
                f" {option}.file"
            )
        what = "file" if source == "file" else "environment variable"
        return UnknownKeyError(
            f"the segment is encrypted with key id {key_id!r}, and the {what} named by option"
            f" {option}.{source} does not exist on the driver or on this worker"
        )


@functools.lru_cache(maxsize=8)
def _private_key(pem: bytes) -> PrivateKey:
    """Parses a private key. The result is cached, because the checks of a key take 30 ms and tasks
    may be short.
    """
    from segment_format.manifest.encryption import load_private_key

    return load_private_key(pem)


@functools.lru_cache(maxsize=8)
def _fingerprint(pem: bytes) -> str:
    public = _private_key(pem).public_key
    return hashlib.sha256(f"{public.modulus} {public.public_exponent}".encode()).hexdigest()


@functools.lru_cache(maxsize=1024)
def _data_key(wrapped: WrappedDataKey, pem: bytes) -> bytes:
    """Decrypts a data key. The result is cached for all tasks of a worker, because RSA in Python
    takes milliseconds.
    """
    from segment_format.manifest.encryption import unwrap_data_key

    return unwrap_data_key(wrapped, _private_key(pem))


def _call(callback: str, key_id: str) -> bytes:
    """Calls the user's function for a key id. If the function raises an exception, raises
    UnknownKeyError without the text of the exception, because the text may contain a key.
    """
    try:
        pem = call_callback(callback, key_id)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        raise UnknownKeyError(
            f"the callback {callback} failed for key id {key_id!r}: {type(error).__name__}"
        ) from None
    if isinstance(pem, str):
        pem = pem.encode()
    if not isinstance(pem, bytes) or not pem:
        raise UnknownKeyError(
            f"the callback {callback} returned {type(pem).__name__} for key id {key_id!r}, not text"
        )
    return pem
