"""Converts ids to and from the text of Kafka's `Uuid`: 22 characters, which are 16 bytes in
URL-safe base64 without padding.

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
    """Returns the 22-character text of an id."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> uuid.UUID:
    """Parses the text of an id.

    Raises:
        InvalidManifestError: `text` is not the text of an id.
    """
    if not UUID_TEXT_PATTERN.fullmatch(text):
        raise InvalidManifestError(f"not a Kafka id (22 characters of base64url): {text[:40]!r}")
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
