"""Selects HTTP faults for a proxy between an S3 client and its server."""

from __future__ import annotations

import time
import urllib.parse
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from tests.faults.trials import Injector, flipped, repeated
from tests.faulty_proxy import Answer, IgnoreRange, Stall, change, cut, drop, hang, status

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faulty_proxy import Fault

_ANY: Final = ("500", "503", "slow", "stall", "reset", "credentials expired", "XML with status 200")
_READS: Final = (
    "body cut",
    "body stalls",
    "range ignored",
    "another range",
    "body too long",
    "changed",
)
_LOGS: Final = ("bit flipped", "bytes repeated")
HTTP_KINDS: Final = (*_ANY, *_READS, *_LOGS)


def _slow(answer: Answer) -> None:
    time.sleep(0.02)


def _xml(answer: Answer) -> None:
    """Replaces the response with an S3 error document, but with status 200."""
    answer.error(200, "InternalError")


def _another_range(answer: Answer) -> None:
    text = next((v for name, v in answer.headers.items() if name.lower() == "content-range"), "")
    if text.startswith("bytes "):
        first, rest = text.removeprefix("bytes ").split("-", 1)
        change(Content_Range=f"bytes {int(first) + 1}-{rest}")(answer)


def _too_long(answer: Answer) -> None:
    answer.body += answer.body[:100] or b"x"


def _damage(answer: Answer, damage: Callable[[bytes, int], bytes]) -> None:
    text = next((v for name, v in answer.headers.items() if name.lower() == "content-range"), "")
    if text.startswith("bytes ") and answer.body:
        answer.body = damage(answer.body, int(text.removeprefix("bytes ").split("-")[0]))


@dataclass
class Chooser:
    """Lets `injector` choose the fault of each request, and converts its name to a proxy fault."""

    bucket: str
    injector: Injector = field(default_factory=lambda: Injector((), 0.0, Random(0)))

    def choose(self, method: str, path: str) -> Fault | None:
        """Returns the proxy fault for one request, or `None` to forward it unchanged."""
        key = urllib.parse.unquote(urllib.parse.urlsplit(path).path).removeprefix(
            f"/{self.bucket}/"
        )
        is_read = method == "GET" and "list-type" not in path
        possible = (*_ANY, *(_READS if is_read else ()), *(_LOGS if key.endswith(".log") else ()))
        source = self.injector.random
        match self.injector.draw(possible):
            case "500":
                return status(500, "InternalError")
            case "503":
                return status(503, "SlowDown")
            case "credentials expired":
                return status(403, "ExpiredToken")
            case "slow":
                return _slow
            case "stall":
                return Stall()
            case "reset":
                return drop
            case "XML with status 200":
                return _xml
            case "body cut":
                return cut(source.randrange(100))
            case "body stalls":
                return hang(source.randrange(100))
            case "range ignored":
                return IgnoreRange()
            case "another range":
                return _another_range
            case "body too long":
                return _too_long
            case "changed":
                return change(ETag='"another"')
            case "bit flipped":
                return partial(
                    _damage, damage=lambda data, start: flipped(data, key, start, source)
                )
            case "bytes repeated":
                return partial(_damage, damage=lambda data, _start: repeated(data, source))
        return None
