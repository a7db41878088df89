"""Session tokens in what botocore logs: at level DEBUG it tells whole requests and answers."""

from __future__ import annotations

import logging
import re
from typing import Final

from kts_source.secret import MASK

# A canonical request, the headers of a request, its arguments, and answers of the token service.
_LOGGERS: Final = ("botocore.auth", "botocore.endpoint", "botocore.parsers")
_VALUE: Final = re.compile(
    r"((?:x-amz-security-token|WebIdentityToken|SessionToken|SecretAccessKey)"
    r"(?:['\"]?\s*[:=]\s*(?:b?['\"])?|>))[^'\"\s,&<}]+",
    re.IGNORECASE,
)


class _HidesTokens(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record through, without values of tokens."""
        text = record.getMessage()
        hidden = _VALUE.sub(rf"\g<1>{MASK}", text)
        if hidden != text:
            record.msg, record.args = hidden, ()
        return True


_hides_tokens: Final = _HidesTokens()


def hide_tokens() -> None:
    """From now on, in this process. Once is enough, more do no harm."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_hides_tokens)
