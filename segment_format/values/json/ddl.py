"""Parses and prints types in Spark's DDL, such as `a bigint, b struct<c: string>, d decimal(10,2)
not null`.

    columns = column *("," column)
    column  = name [":"] type ["not null"] ["comment" text]
    type    = word ["(" number ["," number] ")"]
            | "array" "<" type ">" | "map" "<" "string" "," type ">" | "struct" "<" [columns] ">"
    name    = a word of letters, digits and underscores, or any text in backticks; a backtick in
                  the text is doubled

Keywords are case-insensitive, names are case-sensitive. Comments are ignored. `infer` returns a
type that fits all JSON values of a sample.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


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
    """Parses the DDL of columns or of a single type, such as `array<int>`. Columns become a struct.

    Raises:
        ValueError: The DDL is malformed or has an unsupported type. The message contains the
            position.
    """
    reader = _Reader(text)
    if reader.at_type():
        kind = reader.kind(0)
        if reader.at_end():
            return kind
        reader = _Reader(text)  # a column may be named like a type
    kind = pa.struct(reader.columns("", 0))
    if not reader.at_end():
        reader.fail("the end, or a comma and another column")
    return kind


class _Token(NamedTuple):
    """A part of the text: a word, a sign, a quoted name or a text in quotes.

    Attributes:
        kind: Kind of the token; empty for the end of the text.
        text: The characters of the token.
        start: Position of its first character in the text.
    """

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
        """Raises a ValueError which says that `wanted` was expected in place of the current
        token.
        """
        token = repr(self._token.text) if self._token.kind else "the end"
        raise ValueError(f"expected {wanted} at character {self._token.start}, not {token}")

    def at_end(self) -> bool:
        """Returns whether all tokens were read."""
        return not self._token.kind

    def at_type(self) -> bool:
        """Returns whether a type can begin with the current token."""
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
        """Parses columns separated by commas. If the first token is `stop`, returns no columns.
        `stop` is not consumed; if it is empty, at least one column is required.
        """
        fields: list[pa.Field] = []
        names: set[str] = set()
        while not (stop and not fields and self._token.text == stop):
            start = self._token.start
            field = self._column(depth)
            if field.name in names:
                raise ValueError(f"column {field.name!r} is repeated at character {start}")
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
        """Parses a type. `depth` is the number of types around it."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"types are nested more than {_MAX_DEPTH} levels deep")
        word = self._word()
        if not self.at_type():
            type_names = ", ".join((*_TYPES, "decimal", *_NESTED))
            self.fail(f"a type ({type_names})")
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
            self.fail("'string', the only supported type of map keys")
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
                f"decimal({precision},{scale}) at character {start}: the precision must be in"
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
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if not match or match.lastgroup is None:
            position += len(text[position:]) - len(text[position:].lstrip())
            raise ValueError(
                f"unexpected {text[position : position + 10]!r} at character {position}"
            )
        kind = match.lastgroup
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        position = match.end()
    tokens.append(_Token("", "", len(text)))
    return tokens


def print_ddl(kind: pa.DataType) -> str:
    """Returns the DDL of a type. The DDL of a struct consists of its columns.

    For types to which JSON can be decoded, `parse_ddl` converts the DDL back to the type, except
    for the names and nullability of the items of lists and maps, which DDL cannot express.

    Raises:
        ValueError: The type, or a type nested in it, cannot be expressed in DDL.
    """
    if pa.types.is_struct(kind) and kind.num_fields:
        return ", ".join(_column(field, " ") for field in kind)
    return _type(kind)


def _column(field: pa.Field, between: str) -> str:
    name = field.name
    # Backticks are also needed for names such as `array`: a single column with this name would be
    # parsed as a type.
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
    raise ValueError(f"the type {kind} cannot be expressed in Spark's DDL")


_INT64: Final = range(-(2**63), 2**63)
_MAX_FIELDS: Final = 5000
_MAX_DIGITS: Final = 20  # with a sign
_BOOL: Final = "a boolean"
_INTEGER: Final = "an integer"
_NUMBER: Final = "a number"
_STRING: Final = "a string"
_OBJECT: Final = "an object"
_ARRAY: Final = "an array"
_SCALARS: Final = {
    _BOOL: pa.bool_(),
    _INTEGER: pa.int64(),
    _NUMBER: pa.float64(),
    _STRING: pa.string(),
}


@dataclass(slots=True)
class _SampleValues:
    """Describes the values that the samples have at one path.

    Attributes:
        path: Path of the values: names joined by dots.
        kind: Kind of the values; empty if all of them are null.
        fields: Descriptions of the fields if the values are objects.
        item: Description of the items if the values are arrays.
    """

    path: str
    kind: str = ""
    fields: dict[str, _SampleValues] = field(default_factory=dict)
    item: _SampleValues | None = None


def infer(samples: Iterable[bytes | None]) -> pa.DataType:
    """Infers the common type of JSON values.

    Integers become int64. If a path also has other numbers, or integers that do not fit int64, the
    type is double. Objects become a struct with the fields of all objects, in the order in which
    they first appear. Arrays become a list, whose item type is the common type of the items of all
    arrays. All fields and items are nullable.

    All other conflicts, such as a number and a string at one path, raise an error that contains the
    path. (Spark's inference would use a string without an error.) Fields that are null, an empty
    array or an empty object in all samples are omitted.

    Args:
        samples: All values to consider. Nulls and values that are not valid JSON are ignored.

    Raises:
        ValueError: The samples conflict, no sample has a value from which a type can be inferred,
            or they have more than 5,000 fields or 100 levels.
    """
    inference = TypeInference()
    reason = "there is no sample"
    for sample in samples:
        if sample is None:
            continue
        try:
            value = parse_json(sample)
        except ValueError as error:
            reason = f"no sample is valid JSON: {error}"
            continue
        inference.add(value)
        reason = "all samples are null or empty"
    kind = inference.type
    if kind is None:
        raise ValueError(f"no type can be inferred: {reason}")
    return kind


class TypeInference:
    """Infers the common type of parsed JSON values, by the rules of `infer`."""

    def __init__(self) -> None:
        self._root = _SampleValues("")
        self._fields = [0]

    def add(self, value: object) -> None:
        """Adds a value. Raises `ValueError` if it conflicts with earlier values, or if there are
        too many fields or levels.
        """
        _add_value(self._root, value, self._fields, 0)

    @property
    def type(self) -> pa.DataType | None:
        """The common type. `None` if all values are null or empty."""
        return _inferred_type(self._root)


def parse_json(text: bytes) -> Any:  # noqa: ANN401  # any JSON
    """Parses a JSON value as strictly as the decoder. Integers with more than 20 characters become
    floats.

    Raises:
        ValueError: The text is not valid JSON, or is nested too deeply. The message is the name of
            an error's class.
    """
    try:
        document = text.decode()
        value = json.loads(document, parse_constant=_refuse, parse_int=_integer)
        if "\\u" in document:
            json.dumps(value, ensure_ascii=False).encode()  # fails for half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise ValueError(type(error).__name__) from error
    return value


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _MAX_DIGITS else float(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _add_value(seen: _SampleValues, value: Any, fields: list[int], depth: int) -> None:  # noqa: ANN401
    """Adds the types of `value` and of all values inside it to `seen`, which describes the samples
    so far.
    """
    if value is None:
        return
    if depth > _MAX_DEPTH:
        raise ValueError(
            f"{seen.path}: JSON is nested more than {_MAX_DEPTH} levels; specify a schema"
        )
    kind = _kind(value)
    if {kind, seen.kind} == {_INTEGER, _NUMBER}:
        kind = _NUMBER
    elif seen.kind not in ("", kind):
        raise ValueError(
            f"{seen.path or 'the value'} is {seen.kind} in some samples and {kind} in others;"
            " specify a schema"
        )
    seen.kind = kind
    if kind == _OBJECT:
        for name, below in value.items():
            if name not in seen.fields:
                fields[0] += 1
                if fields[0] > _MAX_FIELDS:
                    raise ValueError(
                        f"the samples have more than {_MAX_FIELDS} fields; specify a schema"
                    )
                path = f"{seen.path}.{name}" if seen.path else name
                seen.fields[name] = _SampleValues(path)
            _add_value(seen.fields[name], below, fields, depth + 1)
    elif kind == _ARRAY:
        if seen.item is None:
            seen.item = _SampleValues(seen.path)
        for below in value:
            _add_value(seen.item, below, fields, depth + 1)


def _kind(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _INTEGER if value in _INT64 else _NUMBER
    if isinstance(value, float):
        return _NUMBER
    if isinstance(value, str):
        return _STRING
    return _OBJECT if isinstance(value, dict) else _ARRAY


def _inferred_type(seen: _SampleValues) -> pa.DataType | None:
    if seen.kind in _SCALARS:
        return _SCALARS[seen.kind]
    if seen.kind == _ARRAY and seen.item is not None:
        item = _inferred_type(seen.item)
        return None if item is None else pa.list_(pa.field("element", item))
    if seen.kind == _OBJECT:
        kinds = {name: _inferred_type(below) for name, below in seen.fields.items()}
        fields = [(name, kind) for name, kind in kinds.items() if kind is not None]
        return pa.struct(fields) if fields else None
    return None
