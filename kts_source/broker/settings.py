"""How brokers are reached, as `kafka.*` options say it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kts_source.secret import Secret


@dataclass(frozen=True, slots=True)
class Security:
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    bootstrap: tuple[tuple[str, int], ...]
    security: Secret[Security] = field(repr=False)
    client_id: str = "tiered-kafka"
    rack: str = ""
    request_timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 10.0
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 << 20
    partition_fetch_bytes: int = 8 << 20
