"""Kafka's `Uuid` as text: URL-safe base64 of 16 big-endian bytes, no padding, 22 characters.

Source: `org.apache.kafka.common.Uuid`.
"""

from __future__ import annotations

import base64
import re
import uuid

from segment_format.errors import InvalidManifestError

UUID_TEXT_LENGTH = 22
UUID_TEXT_PATTERN = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")


def uuid_to_text(value: uuid.UUID) -> str:
    """The 22-character text of `value`."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> uuid.UUID:
    """The id that `text` (22 characters) stands for.

    Raises:
        InvalidManifestError: `text` is not the text form of 16 bytes.
    """
    if not UUID_TEXT_PATTERN.fullmatch(text):
        raise InvalidManifestError(f"not a Kafka id (22 characters of base64url): {text[:40]!r}")
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
