r"""`sasl.jaas.config`: one login module with its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";

As in Kafka's `JaasConfig`, which reads it with Java's `StreamTokenizer`: values in double or single
quotes with backslash escapes (`\n`, `\"`, `\101`), or plain words; `//` and `/* */` comments.
Stricter in what no one means: an end of line in quotes, a name twice, more than one module.

The text is a secret. Errors say what is wrong and where; they show no word of it, since what
stands in the place of a name may be half of a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.broker.settings import (
    AWS_MSK_IAM,
    GSSAPI,
    OAUTHBEARER,
    PLAIN,
    SCRAM_MECHANISMS,
)
from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

JAAS_OPTION: Final = "kafka.sasl.jaas.config"

_MECHANISMS: Final[Mapping[str, tuple[str, ...]]] = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": (PLAIN,),
    "org.apache.kafka.common.security.scram.ScramLoginModule": SCRAM_MECHANISMS,
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": (OAUTHBEARER,),
    "software.amazon.msk.auth.iam.IAMLoginModule": (AWS_MSK_IAM,),
    "com.sun.security.auth.module.Krb5LoginModule": (GSSAPI,),
}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""(?P<blank>[\s]+|//[^\r\n]*|/\*.*?\*/)
    |"(?P<double>(?:[^"\\\r\n]|\\.)*)"
    |'(?P<single>(?:[^'\\\r\n]|\\.)*)'
    |(?P<word>[\w$.-]+)
    |(?P<mark>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NAME: Final = re.compile(r"[A-Za-z_][\w$.-]{0,80}", re.ASCII)
# Platforms that bring Kafka under names of their own write them before the class names.
_SHADED: Final = re.compile(r"(?:kafkashaded|shadedmskiam)\.")


@dataclass(frozen=True, slots=True, repr=False)
class LoginModule:
    """One login module.

    Attributes:
        mechanisms: The SASL mechanisms that it is for.
        options: Names to values.
    """

    mechanisms: tuple[str, ...]
    options: Mapping[str, str]


def parse_jaas(text: str) -> LoginModule:
    """The one login module of a text.

    Raises:
        InvalidOptionError: Another module, several, or what is no such text.
    """
    tokens = _tokens(text)
    if not tokens:
        raise _invalid("is empty")
    name = _SHADED.sub("", tokens[0][1], count=1)
    if tokens[0][0] != "word" or name not in _MECHANISMS:
        raise _invalid(f"must begin with one of the login modules {', '.join(_MECHANISMS)}")
    if len(tokens) < 2 or tokens[1][0] != "word" or tokens[1][1].lower() not in _FLAGS:
        raise _invalid("must have 'required' behind the login module")
    options: dict[str, str] = {}
    place = 2
    while place < len(tokens) and tokens[place] != ("mark", ";"):
        kind, key = tokens[place]
        if kind != "word" or not _NAME.fullmatch(key):
            raise _invalid("has something else where the name of an option belongs")
        pair = tokens[place + 1 : place + 3]
        if len(pair) < 2 or pair[0] != ("mark", "=") or pair[1][0] == "mark":
            # What stands before the gap may be a value that lacks its quotes.
            raise _invalid(f'must give its option number {len(options) + 1} as name="value"')
        if key in options:
            raise _invalid(f"gives its option number {len(options) + 1} a second time")
        options[key] = pair[1][1]
        place += 3
    if place == len(tokens):
        raise _invalid("must end with a semicolon")
    if place != len(tokens) - 1:
        raise _invalid("must hold one login module and end with its semicolon")
    return LoginModule(_MECHANISMS[name], options)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind (`word`, `text` or `mark`) and value of all tokens; blanks and comments are left out."""
    found: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            quoted = text[place] in "\"'"
            what = "a quote that is not closed" if quoted else "a character that needs quotes"
            raise _invalid(f"has {what} at character {place}")
        place = match.end()
        kind = match.lastgroup
        if kind in ("double", "single"):
            found.append(("text", _ESCAPE.sub(_character, match[kind])))
        elif kind in ("word", "mark"):
            found.append((kind, match[kind]))
    return found


def _character(match: re.Match[str]) -> str:
    text = match[1]
    return chr(int(text, 8)) if text[0] in "01234567" else _CONTROLS.get(text, text)


def _invalid(problem: str) -> InvalidOptionError:
    return InvalidOptionError(f"option {JAAS_OPTION!r} {problem}")
