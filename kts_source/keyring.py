"""The private keys that open encrypted segments, by the key id that a manifest names.

Ids come out of option names, which Spark hands over in lower case, so they are compared without
regard to case. A key comes from a file, from an environment variable, or from a function of the
user's that asks a secret store. All are asked on the driver; a file or a variable that is missing
there is looked for again where the key is needed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.callbacks import called, is_callback
from kts_source.errors import InvalidOptionError
from kts_source.secret import Secret
from segment_format.errors import UnknownKeyError

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
    """Key ids to private keys, as places or as the PEM text found there.

    Attributes:
        places: Key id in lower case to its source and the text of its option: `file` and a path,
            `env` and an environment variable, or `callback` and `module:function`.
        pems: Key id in lower case to the PEM bytes, for the keys that have been read.
    """

    places: Secret[Mapping[str, tuple[str, str]]] = field(default_factory=lambda: Secret({}))
    pems: Secret[Mapping[str, bytes]] = field(default_factory=lambda: Secret({}))

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KeyRing:
        """The ring named by options `encryption.key.pairs.<id>.private.key.{file,env,callback}`.

        Raises:
            InvalidOptionError: A key from two places, or a callback that is not written as
                `module:function`.
        """
        places: dict[str, tuple[str, str]] = {}
        for name, text in options.items():
            match = KEY_OPTION_PATTERN.fullmatch(name)
            if not match:
                continue
            key_id, source = match["id"].lower(), match["source"].lower()
            if key_id in places and places[key_id][0] != source:
                raise InvalidOptionError(
                    f"the private key {key_id!r} is given as {places[key_id][0]} and as {source}"
                )
            if source == "callback" and not is_callback(text):
                raise InvalidOptionError(f"option {name} must be written module:function")
            places[key_id] = source, text
        return cls(Secret(places))

    def loaded(self) -> KeyRing:
        """The same ring with every key that can be had here read into memory.

        Raises:
            UnknownKeyError: A callback that fails or gives no text.
        """
        pems = dict(self.pems.reveal())
        for key_id in self.key_ids:
            if key_id not in pems and (pem := self._here(key_id)) is not None:
                pems[key_id] = pem
        return KeyRing(self.places, Secret(pems))

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids in the ring, in lower case; ids are not secret."""
        return tuple(sorted(self.places.reveal().keys() | self.pems.reveal().keys()))

    def unwrap(self, wrapped: WrappedDataKey) -> bytes:
        """The data key of a segment (32 bytes).

        Raises:
            UnknownKeyError: No private key with that id, or it is not to be had here either.
            DecryptionError: The key does not open it.
        """
        key_id = wrapped.key_id.lower()
        pem = self.pems.reveal().get(key_id) or self._here(key_id)
        if pem is None:
            raise self._lacks(wrapped.key_id)
        return _data_key(wrapped, pem)

    def fingerprint(self, key_id: str) -> str:
        """What tells the private key of an id from others: SHA-256 of its public half, in hex.
        Empty where there is no such key.

        Raises:
            UnknownKeyError: A callback that fails or gives no text.
        """
        pem = self.pems.reveal().get(key_id.lower()) or self._here(key_id.lower())
        return "" if pem is None else _fingerprint(pem)

    def _here(self, key_id: str) -> bytes | None:
        """The PEM bytes if this machine has them."""
        source, text = self.places.reveal().get(key_id, (None, ""))
        if source == "file":
            return Path(text).read_bytes() if Path(text).is_file() else None
        if source == "env":
            return os.environ.get(text, "").encode() or None
        return None if source is None else _called(text, key_id)

    def _lacks(self, key_id: str) -> UnknownKeyError:
        option = f"encryption.key.pairs.{key_id}.private.key"
        source, _ = self.places.reveal().get(key_id.lower(), (None, ""))
        if source is None:
            held = ", ".join(self.key_ids)
            ring = f"the key ring has {held}" if held else "no key ring is configured"
            return UnknownKeyError(
                f"encrypted with key id {key_id!r}, and {ring}; give option {option}.file"
            )
        what = "file" if source == "file" else "environment variable"
        return UnknownKeyError(
            f"encrypted with key id {key_id!r}, and the {what} named by option {option}.{source}"
            " does not exist on the driver or on this worker"
        )


@functools.lru_cache(maxsize=8)
def _private_key(pem: bytes) -> PrivateKey:
    """The parsed key; parsing checks that it is one, which takes 30 ms, and tasks may be short."""
    from segment_format.manifest.encryption import load_private_key

    return load_private_key(pem)


@functools.lru_cache(maxsize=8)
def _fingerprint(pem: bytes) -> str:
    public = _private_key(pem).public_key
    return hashlib.sha256(f"{public.modulus} {public.public_exponent}".encode()).hexdigest()


@functools.lru_cache(maxsize=1024)
def _data_key(wrapped: WrappedDataKey, pem: bytes) -> bytes:
    """The opened key, for the next tasks of this worker that read the same segment: an RSA
    operation in Python takes milliseconds.
    """
    from segment_format.manifest.encryption import unwrap_data_key

    return unwrap_data_key(wrapped, _private_key(pem))


def _called(callback: str, key_id: str) -> bytes:
    """What the user's function gives for a key id. Its own error may quote a key: not chained."""
    try:
        given = called(callback, key_id)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        raise UnknownKeyError(
            f"the callback {callback} failed for key id {key_id!r}: {type(error).__name__}"
        ) from None
    if isinstance(given, str):
        given = given.encode()
    if not isinstance(given, bytes) or not given:
        raise UnknownKeyError(
            f"the callback {callback} gave {type(given).__name__} for key id {key_id!r}, not text"
        )
    return given
