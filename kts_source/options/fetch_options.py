"""How patiently objects are fetched, and from where else when the first store fails."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import InvalidOptionError
from kts_source.options.option import Option
from kts_source.options.parsing import MAX_INT32, parse_positive_up_to, parse_text
from kts_source.secret import Secret
from kts_source.store.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from kts_source.store.storage_options import STORAGE_OPTIONS, storage_options_from

if TYPE_CHECKING:
    from collections.abc import Mapping

FETCH_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "fetchConnectTimeoutMs",
        parse_positive_up_to(MAX_INT32),
        "1000",
        "For a connection to stand. Alias, as in KIP-1254: `fetch.remote.connect.timeout.ms`.",
    ),
    Option(
        "fetchReadTimeoutMs",
        parse_positive_up_to(MAX_INT32),
        "5000",
        "Idle time: no byte for so long ends an attempt. Alias: `fetch.remote.read.timeout.ms`.",
    ),
    Option(
        "fetchDeadlineMs",
        parse_positive_up_to(MAX_INT32),
        "60000",
        "One attempt may take this long in all, however steadily its bytes trickle.",
    ),
    Option(
        "maxAttempts",
        parse_positive_up_to(MAX_INT32),
        "6",
        "Attempts of a request that meets throttling, server errors, resets, short or late answers;"
        " pauses between them are random and grow.",
    ),
    Option(
        "hedgeAfterMs",
        parse_positive_up_to(MAX_INT32),
        None,
        "Ask a second time when an answer is this late and take the first to come; off by default.",
    ),
    Option(
        "fallbackPath",
        parse_text,
        None,
        "A mirror with the same keys, such as a replica bucket, read when the first store fails."
        " `fallback.s3.*` and `fallback.storageOptions` open it where they differ.",
    ),
    Option(
        "metricsPath",
        parse_text,
        None,
        "Folder or URL where every task leaves a line of JSON: requests, bytes, seconds, records;"
        " read them with `kts_source.metrics.summary`.",
    ),
)

ALIASES: Final[Mapping[str, str]] = {
    "fetch.remote.connect.timeout.ms": "fetchConnectTimeoutMs",
    "fetch.remote.read.timeout.ms": "fetchReadTimeoutMs",
}

FALLBACK_PREFIX: Final = "fallback."
_FALLBACK_NAME = re.compile(r"fallback\.(s3\..+|storageoptions)")


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The options of this module, typed.

    Attributes:
        retry_policy: Time-outs, attempts and the hedge.
        fallback_path: Root of the mirror.
        fallback_storage: What opens the mirror: the first store's options, and over them those
            given for the mirror.
        metrics_path: Where tasks leave their metrics.
    """

    retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY
    fallback_path: str | None = field(default=None, repr=False)  # URLs may hold secrets
    fallback_storage: Secret[Mapping[str, Any]] = field(default_factory=lambda: Secret({}))
    metrics_path: str | None = field(default=None, repr=False)


def take_aliases(texts: dict[str, str]) -> None:
    """Gives options their own names.

    Args:
        texts: Name in lower case to text; changed in place.

    Raises:
        InvalidOptionError: An option under both of its names, and they disagree.
    """
    for alias, name in ALIASES.items():
        if alias in texts:
            text = texts.pop(alias)
            if texts.setdefault(name.lower(), text) != text:
                raise InvalidOptionError(f"options {name} and {alias} disagree")


def take_fallback(texts: dict[str, str]) -> dict[str, str]:
    """The options that open the mirror, without their prefix; taken out of `texts`."""
    return {
        name.removeprefix(FALLBACK_PREFIX): texts.pop(name)
        for name in list(texts)
        if _FALLBACK_NAME.fullmatch(name)
    }


def fetch_options(
    values: Mapping[str, Any],
    storage: Mapping[str, str],
    fallback: Mapping[str, str],
) -> FetchOptions:
    """From parsed values to typed ones.

    Args:
        values: Option name to value.
        storage: Texts that open the first store.
        fallback: Texts that open the mirror where it differs.

    Raises:
        InvalidOptionError: Options of a mirror without a mirror.
    """
    path = values["fallbackPath"]
    if fallback and path is None:
        raise InvalidOptionError("options fallback.s3.… need option fallbackPath")
    hedge = values["hedgeAfterMs"]
    deadline = values["fetchDeadlineMs"] / 1000
    policy = RetryPolicy(
        max_attempts=values["maxAttempts"],
        give_up_after_seconds=max(DEFAULT_RETRY_POLICY.give_up_after_seconds, deadline),
        request_deadline_seconds=deadline,
        connect_timeout_seconds=values["fetchConnectTimeoutMs"] / 1000,
        read_timeout_seconds=values["fetchReadTimeoutMs"] / 1000,
        hedge_after_seconds=None if hedge is None else hedge / 1000,
    )
    # Credentials belong together: those of the mirror replace all of the first store's.
    credentials = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.anonymous")
    given = {name.lower(): text for name, text in storage.items()}
    if any(name in fallback for name in credentials):
        given = {name: text for name, text in given.items() if name not in credentials}
    if "s3.endpoint" in fallback or STORAGE_OPTIONS.lower() in fallback:
        given.pop(STORAGE_OPTIONS.lower(), None)
    mirror = storage_options_from({**given, **fallback}) if path else Secret({})
    return FetchOptions(policy, path, mirror, values["metricsPath"])
