"""Files of keys.

lines    a key a line, in UTF-8, without the line feed; no empty lines, no control characters, and
         no blanks at an end
hex      likewise, each byte as two hex digits
length   for each key its length as int32, big-endian, −1 for a record without a key, and the bytes
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kts_source.errors import InvalidOptionError

LINES: Final = "lines"
HEX: Final = "hex"
LENGTH: Final = "length"
FORMATS: Final = (LINES, HEX, LENGTH)
_NO_KEY: Final = -1
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def read_keys(path: str, form: str) -> list[bytes | None]:
    """The keys of a file, as it has them.

    A line that may be meant otherwise is refused: a key that nobody has would be found nowhere, and
    certified so.

    Args:
        path: Of the file.
        form: One of `FORMATS`.

    Raises:
        InvalidOptionError: The file cannot be read, has no key, or is not of the format.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be read: {error.strerror}") from None
    keys = _by_length(path, data) if form == LENGTH else _by_line(path, data, form)
    if not keys:
        raise InvalidOptionError(f"{path} has no key")
    return keys


def _by_line(path: str, data: bytes, form: str) -> list[bytes | None]:
    if data.startswith(_BYTE_ORDER_MARK):
        raise InvalidOptionError(f"{path} begins with a byte order mark: save it without")
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if b"\r" in line:
            raise InvalidOptionError(
                f"line {number} of {path} has a carriage return: save the file with line feeds"
                f" alone, or write keys that have one in format {HEX}"
            )
        if not line.strip():
            raise InvalidOptionError(
                f"line {number} of {path} is empty: format {LENGTH} has empty keys"
            )
    if form == LINES:
        for number, line in enumerate(lines, 1):
            _check_line(line, f"line {number} of {path}")
        return [*lines]
    keys: list[bytes | None] = []
    for number, line in enumerate(lines, 1):
        keys.append(from_hex(line.decode("ascii", "replace"), f"line {number} of {path}"))
    return keys


def _check_line(line: bytes, what: str) -> None:
    """Raises `InvalidOptionError` for a key that looks as if it was written otherwise: a file in
    another encoding, or one with columns.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise InvalidOptionError(f"{what} is not in UTF-8: write it in format {HEX}") from None
    if text != text.strip() or any(ord(one) < 32 or ord(one) == 127 for one in text):
        raise InvalidOptionError(
            f"{what} begins or ends with a blank, or has a control character: if the key does,"
            f" write it in format {HEX}"
        )


def from_hex(text: str, what: str) -> bytes:
    """The bytes of hex digits.

    Raises:
        InvalidOptionError: It is something else.
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidOptionError(f"{what} is not of hex digits, two a byte") from None


def _by_length(path: str, data: bytes) -> list[bytes | None]:
    keys: list[bytes | None] = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        left = len(data) - at - 4
        if left < 0 or size < _NO_KEY or size > left:
            raise InvalidOptionError(f"byte {at} of {path} is not where a key with its length is")
        keys.append(None if size == _NO_KEY else data[at + 4 : at + 4 + size])
        at += 4 + max(size, 0)
    return keys
