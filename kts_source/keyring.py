"""The private keys that open encrypted segments, by the key id that a manifest names.

Ids come out of option names, which Spark hands over in lower case, so they are compared without
regard to case. The files are read on the driver; one that is missing there is looked for again
where the key is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.secret import Secret
from segment_format.errors import UnknownKeyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from segment_format.manifest.encryption import WrappedDataKey

KEY_OPTION_PATTERN: Final = re.compile(
    r"encryption\.key\.pairs\.(?P<id>.+)\.private\.key\.file", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Key ids to private keys, as files or as the PEM text read from them.

    Attributes:
        files: Key id in lower case to the path of its PEM file.
        pems: Key id in lower case to the PEM bytes, for the files that have been read.
    """

    files: Secret[Mapping[str, str]] = field(default_factory=lambda: Secret({}))
    pems: Secret[Mapping[str, bytes]] = field(default_factory=lambda: Secret({}))

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KeyRing:
        """The ring named by options `encryption.key.pairs.<id>.private.key.file`."""
        files = {}
        for name, path in options.items():
            match = KEY_OPTION_PATTERN.fullmatch(name)
            if match:
                files[match["id"].lower()] = path
        return cls(Secret(files))

    def loaded(self) -> KeyRing:
        """The same ring with every file that exists here read into memory."""
        pems = dict(self.pems.reveal())
        for key_id, path in self.files.reveal().items():
            if key_id not in pems and Path(path).is_file():
                pems[key_id] = Path(path).read_bytes()
        return KeyRing(self.files, Secret(pems))

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids in the ring, in lower case; ids are not secret."""
        return tuple(sorted({*self.files.reveal(), *self.pems.reveal()}))

    def unwrap(self, wrapped: WrappedDataKey) -> bytes:
        """The data key of a segment (32 bytes).

        Raises:
            UnknownKeyError: No private key with that id, or its file does not exist here either.
            DecryptionError: The key does not open it.
        """
        key_id = wrapped.key_id.lower()
        pem = self.pems.reveal().get(key_id) or self._read(key_id, wrapped.key_id)
        from segment_format.manifest.encryption import load_private_key, unwrap_data_key

        return unwrap_data_key(wrapped, load_private_key(pem))

    def _read(self, key_id: str, shown_id: str) -> bytes:
        path = self.files.reveal().get(key_id)
        option = f"encryption.key.pairs.{shown_id}.private.key.file"
        if path is None:
            ring = (
                f"the key ring has {', '.join(self.key_ids)}"
                if self.key_ids
                else "no key ring is configured"
            )
            raise UnknownKeyError(
                f"encrypted with key id {shown_id!r}, and {ring}; give option {option}"
            )
        if not Path(path).is_file():
            raise UnknownKeyError(
                f"encrypted with key id {shown_id!r}, and the file named by option {option} does"
                f" not exist on"
                " the driver or on this worker"
            )
        return Path(path).read_bytes()
