"""Types as Spark writes them: `a bigint, b struct<c: string>, d decimal(10,2) not null`.

    columns = column *("," column)
    column  = name [":"] type ["not null"] ["comment" text]
    type    = word ["(" number ["," number] ")"]
            | "array" "<" type ">" | "map" "<" "string" "," type ">" | "struct" "<" [columns] ">"
    name    = a word of letters, digits and underscores, or anything in backticks, doubled inside

Words are read in any case, names keep theirs. Comments are left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<word>\w+)|(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<sign>[<>(),:]))""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_DEPTH: Final = 100
_MAX_PRECISION: Final = 38
_DEFAULT_DECIMAL: Final = (10, 0)

_TYPES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_ALIASES: Final = {
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_WORDS: Final = {kind: word for word, kind in _TYPES.items()} | {
    pa.duration("us"): "interval day to second",
    pa.null(): "void",
}
_NESTED: Final = ("array", "map", "struct")


def parse_ddl(text: str) -> pa.DataType:
    """The type that a DDL stands for: a struct of columns, or a type alone, such as `array<int>`.

    Raises:
        ValueError: It is not written like that, or holds a type that is none of ours; the message
            says where.
    """
    reader = _Reader(text)
    if reader.at_type():
        kind = reader.kind(0)
        if reader.at_end():
            return kind
        reader = _Reader(text)  # a column may have the name of a type
    kind = pa.struct(reader.columns("", 0))
    if not reader.at_end():
        reader.fail("the end, or a comma and another column,")
    return kind


class _Token(NamedTuple):
    """A word, sign or name in quotes that begins at `start`; `kind` is empty at the end."""

    kind: str
    text: str
    start: int


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._index = 0

    @property
    def _token(self) -> _Token:
        return self._tokens[self._index]

    def fail(self, wanted: str) -> NoReturn:
        """Says what should stand where the reader is."""
        found = repr(self._token.text) if self._token.kind else "the end"
        raise ValueError(f"{wanted} should stand at character {self._token.start}, not {found}")

    def at_end(self) -> bool:
        """Whether all is read."""
        return not self._token.kind

    def at_type(self) -> bool:
        """Whether a type begins here, as far as its first word tells."""
        word = self._word()
        return word in _TYPES or word == "decimal" or word in _NESTED

    def _word(self) -> str:
        token = self._token
        word = token.text.lower() if token.kind == "word" else ""
        return _ALIASES.get(word, word)

    def _skip(self, text: str) -> bool:
        if self._token.kind in ("sign", "word") and self._token.text.lower() == text:
            self._index += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            self.fail(repr(text))

    def columns(self, stop: str, depth: int) -> list[pa.Field]:
        """Columns up to a sign, or to the end."""
        fields: list[pa.Field] = []
        names: set[str] = set()
        while not (stop and not fields and self._token.text == stop):
            start = self._token.start
            field = self._column(depth)
            if field.name in names:
                raise ValueError(f"column {field.name!r} comes twice, at character {start}")
            names.add(field.name)
            fields.append(field)
            if not self._skip(","):
                break
        return fields

    def _column(self, depth: int) -> pa.Field:
        token = self._token
        if token.kind == "quoted":
            name = token.text[1:-1].replace("``", "`")
        elif token.kind == "word":
            name = token.text
        else:
            self.fail("the name of a column")
        self._index += 1
        self._skip(":")
        kind = self.kind(depth)
        nullable = True
        if self._skip("not"):
            self._expect("null")
            nullable = False
        if self._skip("comment"):
            if self._token.kind != "text":
                self.fail("a comment in quotes")
            self._index += 1
        return pa.field(name, kind, nullable=nullable)

    def kind(self, depth: int) -> pa.DataType:
        """The type that stands here."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"types are more than {_MAX_DEPTH} deep")
        word = self._word()
        if not self.at_type():
            known = ", ".join((*_TYPES, "decimal", *_NESTED))
            self.fail(f"a type ({known})")
        self._index += 1
        if word == "decimal":
            return self._decimal()
        if word == "array":
            return self._inside(lambda: pa.list_(pa.field("element", self.kind(depth + 1))))
        if word == "map":
            return self._inside(lambda: self._map(depth))
        if word == "struct":
            return self._inside(lambda: pa.struct(self.columns(">", depth + 1)))
        return _TYPES[word]

    def _inside(self, read: Callable[[], pa.DataType]) -> pa.DataType:
        self._expect("<")
        kind = read()
        self._expect(">")
        return kind

    def _map(self, depth: int) -> pa.DataType:
        if self._word() != "string":
            self.fail("'string', the only type of a map's keys,")
        self._index += 1
        self._expect(",")
        return pa.map_(pa.string(), self.kind(depth + 1))

    def _decimal(self) -> pa.DataType:
        precision, scale = _DEFAULT_DECIMAL
        start = self._token.start
        if self._skip("("):
            precision = self._number()
            scale = self._number() if self._skip(",") else 0
            self._expect(")")
        if not 1 <= precision <= _MAX_PRECISION or not 0 <= scale <= precision:
            raise ValueError(
                f"decimal({precision},{scale}) at character {start}: the precision must lie in"
                f" [1, {_MAX_PRECISION}], the scale in [0, precision]"
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._token
        if token.kind != "word" or not re.fullmatch("[0-9]{1,9}", token.text):
            self.fail("a number")
        self._index += 1
        return int(token.text)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if not match or match.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise ValueError(f"nothing can be made of {text[at : at + 10]!r} at character {at}")
        kind = match.lastgroup
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    tokens.append(_Token("", "", len(text)))
    return tokens


def print_ddl(kind: pa.DataType) -> str:
    """The DDL of a type, as Spark has it: of a struct its columns, of another type the type alone.

    `parse_ddl` gives a type that JSON is read to again, but for the names of lists' and maps'
    items, and whether those may be null.

    Raises:
        ValueError: The type, or one in it, has no DDL here.
    """
    if pa.types.is_struct(kind) and kind.num_fields:
        return ", ".join(_column(field, " ") for field in kind)
    return _type(kind)


def _column(field: pa.Field, between: str) -> str:
    name = field.name
    # A lone column `array` would be read as the begin of a type.
    if not _PLAIN_NAME.fullmatch(name) or name.lower() in _NESTED:
        name = "`" + name.replace("`", "``") + "`"
    rest = "" if field.nullable else " not null"
    return f"{name}{between}{_type(field.type)}{rest}"


def _type(kind: pa.DataType) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_type(kind.key_type)},{_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        columns = ", ".join(_column(field, ": ") for field in kind)
        return f"struct<{columns}>"
    raise ValueError(f"{kind} has no DDL")
