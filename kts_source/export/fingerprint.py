"""Computes the settings that determine the rows of a table, for example the filter, the transform
and the partitioning. The table stores these settings. An export continues a table only if its
settings are equal to the stored ones.

A transform is represented by a digest of its source code and of all objects that are bound to it:
closures, default arguments, arguments of `functools.partial`, attributes, and the objects that are
bound to these objects. If one of them has an attribute `fingerprint` of type str, this text is used
instead of a digest of the object.

The digest does not cover global variables, functions that the code calls by a global name, and
attributes that are added to a class later.

A table stores its settings as compact texts, such as the `repr` of a parsed predicate. These texts
must not change, so this module translates them for messages about changed settings.
"""

from __future__ import annotations

import ast
import copyreg
import dis
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.errors import FingerprintError
from kts_source.export.partitioning import partition_rule
from kts_source.export.row_schema import decoded_schema
from kts_source.options.value_formats import DROP_MALFORMED, PERMISSIVE
from kts_source.predicate.model import Op, Part, Wildcard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.export.settings import ExportSettings, Transform
    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat


_PICKLE_PROTOCOL: Final = 4
_ATOMS: Final = (str, bytes, bool, int, float, complex, type(None), type(Ellipsis))


def own_fingerprint(value: object) -> str | None:
    """Returns the attribute `fingerprint` of an object if it is a str; otherwise `None`."""
    own = None if isinstance(value, type) else getattr(value, "fingerprint", None)
    return own if isinstance(own, str) else None


def digest_transform(transform: object) -> str:
    """Returns a digest of a transform. It is equal in every process if the code of the transform
    and the objects that are bound to it are equal.

    Raises:
        FingerprintError: The content of one of these objects cannot be determined.
    """
    try:
        return _Digest().of(transform).hex()[:32]
    except RecursionError:
        raise _unknown_content(transform, "it is nested too deeply") from None


class _Digest:
    """Computes digests of objects from their contents. Objects with equal contents have equal
    digests, even if their sets have different orders, or if one object refers twice to an object
    that the other contains as two copies.
    """

    def __init__(self) -> None:
        # References keep the objects alive, so that Python does not reuse their ids.
        self._known: dict[int, tuple[object, bytes]] = {}

    def of(self, value: object) -> bytes:
        if type(value) in _ATOMS:
            return _hash(type(value).__name__, repr(value))
        if id(value) not in self._known:
            self._known[id(value)] = value, _hash("itself")
            own = own_fingerprint(value)
            digest = self._by_kind(value) if own is None else _hash("own", own)
            self._known[id(value)] = value, digest
        return self._known[id(value)][1]

    def _all(self, values: Iterable[object]) -> list[bytes]:
        return [self.of(value) for value in values]

    @singledispatchmethod
    def _by_kind(self, value: Any) -> bytes:  # noqa: ANN401
        """Returns the digest of an object. Values of types such as list, dict and function are
        digested by other methods; any other object by the values that pickle would store.
        """
        try:
            registered = copyreg.dispatch_table.get(type(value))
            reduced = registered(value) if registered else value.__reduce_ex__(_PICKLE_PROTOCOL)
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001  # objects may raise anything
            raise _unknown_content(value, f"{type(error).__name__}: {error}") from None
        if isinstance(reduced, str):
            return _hash("global", qualified_name(type(value)), reduced)
        make, arguments, state, items, pairs = (*reduced, None, None, None, None)[:5]
        if isinstance(state, dict) and all(isinstance(name, str) for name in state):
            state = sorted(state.items())  # attributes have no order
        digests = [self.of(type(value)), *self._all(arguments), self.of(state)]
        digests += self._all(items or ()) + self._all(pairs or ())
        return _hash("object", qualified_name(make), *digests)

    @_by_kind.register(tuple)
    @_by_kind.register(list)
    def _sequence(self, value: Any) -> bytes:  # noqa: ANN401
        return _hash("sequence", self.of(type(value)), *self._all(value))

    @_by_kind.register
    def _dict(self, value: dict) -> bytes:  # type: ignore[type-arg]
        return _hash("dict", self.of(type(value)), *self._all(value.items()))

    @_by_kind.register(set)
    @_by_kind.register(frozenset)
    def _set(self, value: Any) -> bytes:  # noqa: ANN401
        return _hash("set", self.of(type(value)), *sorted(self._all(value)))

    @_by_kind.register
    def _module(self, value: types.ModuleType) -> bytes:
        return _hash("module", value.__name__)

    @_by_kind.register
    def _class(self, value: type) -> bytes:
        sources = [source_of(kind) or b"" for kind in value.__mro__ if not _is_of_stdlib(kind)]
        return _hash("class", qualified_name(value), *sources)

    @_by_kind.register
    def _method(self, value: types.MethodType) -> bytes:
        return _hash("method", self.of(value.__func__), self.of(value.__self__))

    @_by_kind.register
    def _builtin(self, value: types.BuiltinFunctionType) -> bytes:
        owner = value.__self__
        bound = b"" if isinstance(owner, types.ModuleType) else self.of(owner)
        return _hash("builtin", qualified_name(value), bound)

    @_by_kind.register
    def _cell(self, value: types.CellType) -> bytes:
        try:
            return _hash("cell", self.of(value.cell_contents))
        except ValueError:
            return _hash("empty cell")

    @_by_kind.register
    def _function(self, value: types.FunctionType) -> bytes:
        if _is_of_stdlib(value):
            return _hash("function", qualified_name(value))
        bound = (value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__)
        return _hash(
            "function", qualified_name(value), self._code(value.__code__), *self._all(bound)
        )

    def _code(self, code: types.CodeType) -> bytes:
        source = source_of(code)
        if source is None:  # use the byte code, which differs between versions of Python
            constants = [
                self._code(constant) if isinstance(constant, types.CodeType) else self.of(constant)
                for constant in code.co_consts
            ]
            return _hash("code", code.co_code, repr(code.co_names), *constants)
        # If a line contains several lambdas, their source is the same.
        position = repr(_body_position(code)) if code.co_name == "<lambda>" else ""
        return _hash("source", source, position)


def _body_position(code: types.CodeType) -> tuple[int, int] | None:
    """Returns line and column of the first instruction in the body of a function. The line is
    relative to the first line of the function. Returns `None` if the position is unknown.
    """
    positions = [
        (span.lineno - code.co_firstlineno, span.col_offset)
        for instruction in dis.get_instructions(code)
        if instruction.opname not in ("RESUME", "COPY_FREE_VARS", "MAKE_CELL")
        and (span := instruction.positions) is not None
        and span.lineno is not None
        and span.col_offset is not None
        and span.col_offset != span.end_col_offset  # Python's own instructions have no width
    ]
    return min(positions, default=None)


def source_of(value: Any) -> bytes | None:  # noqa: ANN401
    """Returns the source code of a function, class or code object; `None` if Python cannot find
    it.
    """
    try:
        return inspect.getsource(value).encode()
    except (OSError, TypeError):
        return None


def _is_of_stdlib(value: Any) -> bool:  # noqa: ANN401
    """Returns True if an object belongs to Python's standard library. Source code of the standard
    library is not part of a digest, because it changes with Python versions.
    """
    return str(getattr(value, "__module__", "")).partition(".")[0] in sys.stdlib_module_names


def qualified_name(value: Any) -> str:  # noqa: ANN401
    """Returns module and qualified name of a function or class."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _hash(kind: str, *values: str | bytes) -> bytes:
    digest = hashlib.sha256(kind.encode())
    for value in values:
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _unknown_content(value: object, reason: str) -> FingerprintError:
    return FingerprintError(
        f"the transform contains a {qualified_name(type(value))} whose content cannot be"
        f" determined: {reason}. Set an attribute `fingerprint` of type str on the transform or on"
        " this object, and change it when the transform returns other rows"
    )


Fingerprint: TypeAlias = Mapping[str, str]
"""Maps the name of a rule to its text, or to the digest number of its text."""


def fingerprint(options: ScanOptions, settings: ExportSettings) -> Fingerprint:
    """Returns the settings that determine the rows of an export, as texts by name."""
    compact = ""
    if (how := settings.compaction) is not None:
        # A rebuild replaces the whole table, so it must read the same topics and partitions as
        # before.
        compact = f"{how.tombstones},{how.delete_retention_ms},{options.selection!r}"
    return {
        "isolationLevel": options.isolation_level,
        "columns": ",".join(_column_rules(options, settings)),
        "transform": describe_transform(settings.transform),
        "partitionBy": partition_rule(settings.partition_by),
        "where": "" if options.where is None else repr(options.where),
        "compact": compact,
    }


def _column_rules(options: ScanOptions, settings: ExportSettings) -> Iterator[str]:
    """Yields a text for each column. It contains the name of the column and how the column is
    decoded.

    The text contains the type of a decoded column only if there is a transform. Without a
    transform, the columns of the table show the type, and schema evolution may add fields to it.
    """
    formats = {form.column: form for form in options.formats}
    for name in options.columns:
        form = formats.pop(name, None)
        yield name if form is None else _decoding_rule(form, settings, options)
    for form in formats.values():
        if form.mode == DROP_MALFORMED:  # drops rows even if the column is not written
            yield f"{form.column}:{_format_rule(form)}:{DROP_MALFORMED}"


def _decoding_rule(form: ColumnFormat, settings: ExportSettings, options: ScanOptions) -> str:
    # The table contains no malformed values in both other modes (fail, or drop), so an export may
    # switch between these modes.
    mode = f":{PERMISSIVE}" if form.mode == PERMISSIVE else ""
    kind = ""
    if settings.transform is not None:
        kind = f":{digest_number(str(decoded_schema(options).field(form.column).type))}"
    return f"{form.column}:{_format_rule(form)}{mode}{kind}"


def _format_rule(form: ColumnFormat) -> str:
    # Topics may be added to a table later, so the rule does not name topics with formats of their
    # own.
    return "format by topic" if form.topic else form.format


def describe_transform(transform: Transform | None) -> str:
    """Returns a text that changes if the transform changes, unless the change cannot be detected
    (see the module).

    If the transform has an attribute `fingerprint`, the text is this attribute. Otherwise it
    consists of the name, a digest of the source code, and a digest of all objects that are bound to
    the transform. Without a transform, the text is empty.

    Raises:
        FingerprintError: See `digest_transform`.
    """
    if transform is None:
        return ""
    if (own := own_fingerprint(transform)) is not None:
        return own
    named: Any = transform if hasattr(transform, "__qualname__") else type(transform)
    code, source = qualified_name(named), source_of(named)
    if source is not None:
        code += f"#{hashlib.sha256(source).hexdigest()[:16]}"
    return f"{code}~{digest_transform(transform)}"


def digest_number(text: str) -> int:
    """Returns a digest of `text` as a number of 63 bits. A Delta table stores it as the version of
    a `txn` action. This version is a signed 64-bit number.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def is_stored_text(stored: str, text: str) -> bool:
    """Returns True if `stored` is `text` or the digest number of `text`. Some tables can store only
    numbers.
    """
    return stored in (text, str(digest_number(text)))


def check_fingerprint(
    stored: Fingerprint,
    rules: Fingerprint,
    texts: Callable[[], Mapping[str, str]] = dict[str, str],
) -> None:
    """Compares the settings that are stored in a table with the settings of an export.

    Args:
        stored: Settings in the table, as texts or as digest numbers of texts.
        rules: Settings of the export.
        texts: Returns texts of settings that the table stores as digest numbers. Called only if
            settings differ.

    Raises:
        FingerprintError: Settings differ. The error text names all of them.
    """
    different = {
        name: text
        for name, text in stored.items()
        if name in rules and not is_stored_text(text, rules[name])
    }
    if not different:
        return
    known = texts()
    changes = []
    for name, text in different.items():
        before = text if not text.isdigit() else known.get(name)
        if before is not None and not is_stored_text(text, before):
            before = None
        changes.append(describe_change(name, before, rules[name]))
    raise FingerprintError(
        f"the table was created with other settings: {'; '.join(changes)}. Use the settings of the"
        " first run, or export into another table"
    )


_NAMES: Final = {"partitionBy": "partition_by"}
_ENUM: Final = re.compile(r"<(\w+\.\w+): (?:'[^']*'|\"[^\"]*\")>")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VALUES: Final[Mapping[str, str]] = {
    f"{type(member).__name__}.{member.name}": str(member.value)
    for kind in (Op, Part, Wildcard)
    for member in kind
}


def describe_change(name: str, before: str | None, after: str) -> str:
    """Returns a text such as `isolationLevel: read_committed → read_uncommitted`.

    Args:
        name: Name of the setting.
        before: Stored text of the setting; `None` if the table has only its digest.
        after: Text of the setting in this run.
    """
    label = _NAMES.get(name, name)
    if before is not None and name == "columns":
        return "; ".join(_column_changes(before, after))
    if before is not None and name == "transform":
        names = [text.partition("#")[0].partition("~")[0] for text in (before, after)]
        if names[0] == names[1]:
            return f"{label}: the code of {names[0]}, or an object that it uses, has changed"
    old = "another value" if before is None else _plain(name, before)
    return f"{label}: {old} → {_plain(name, after)}"


def _plain(name: str, text: str) -> str:
    if not text:
        return "none"
    if name == "where":
        return where_sql(text)
    if name == "transform":
        return text.partition("#")[0].partition("~")[0]
    if name == "columns":
        return ", ".join(f"{column} ({form})" for column, form in _columns(text).items())
    if name == "compact":
        tombstones, retention_ms, selection = text.split(",", 2)
        return f"tombstones={tombstones}, delete_retention_ms={retention_ms}, {selection}"
    return text


def _columns(text: str) -> dict[str, str]:
    """Returns the format of each column in the setting `columns`."""
    columns = {}
    for rule in text.split(","):
        column, *form = rule.split(":")
        columns[column] = " ".join(part for part in form if not part.isdigit()) or "bytes"
        if form and form[-1].isdigit():
            columns[column] += f", type {form[-1]}"
    return columns


def _column_changes(before: str, after: str) -> Iterator[str]:
    old, new = _columns(before), _columns(after)
    if [*old] != [*new] and {*old} == {*new}:
        yield f"columns: {', '.join(old)} → {', '.join(new)}"
    for column in dict.fromkeys((*old, *new)):
        if (first := old.get(column, "no column")) != (then := new.get(column, "no column")):
            yield f"columns: {column}: {first} → {then}"


def where_sql(text: str) -> str:
    """Returns the condition whose `repr` is `text` as SQL. Returns `text` if it cannot be
    translated.
    """
    try:
        return _sql(ast.parse(_ENUM.sub(r"\1", text), mode="eval").body)
    except (SyntaxError, KeyError, ValueError, AttributeError, OverflowError):
        return text


def _sql(node: ast.expr) -> str:
    if not isinstance(node, ast.Call):
        return _literal(node)
    kind = ast.unparse(node.func)
    parts = {str(keyword.arg): keyword.value for keyword in node.keywords}
    if kind in ("And", "Or"):
        terms: Any = parts["terms"]
        return f" {kind.upper()} ".join(_term(term) for term in terms.elts)
    if kind == "Not":
        return f"NOT ({_sql(parts['term'])})"
    if kind == "Constant":
        return ast.unparse(parts["value"]).lower()
    if kind in ("Column", "Header", "Field", "Decimal"):
        return _operand(kind, node, parts)
    return _condition(kind, parts)


def _condition(kind: str, parts: Mapping[str, Any]) -> str:
    operand = parts.get("left", parts.get("operand"))
    name = _sql(operand)
    is_time = name == "timestamp" or "INSTANT" in ast.unparse(operand)
    if kind == "Compare":
        return f"{name} {_enum(parts['op'])} {_value(parts['right'], is_time=is_time)}"
    if kind == "In":
        values = [_value(value, is_time=is_time) for value in parts["values"].elts]
        values += ["NULL"] if parts["has_null"].value else []
        return f"{name} IN ({', '.join(values)})"
    if kind == "IsNull":
        return f"{name} IS NULL"
    if kind == "HasText":
        return f"{_enum(parts['part'])}({name}, {_literal(parts['text'])})"
    pattern = "".join(
        str(each.value) if isinstance(each, ast.Constant) else _enum(each)
        for each in parts["pattern"].elts
    )
    return f"{name} LIKE '{pattern}'"


def _term(node: ast.expr) -> str:
    text = _sql(node)
    is_compound = isinstance(node, ast.Call) and ast.unparse(node.func) in ("And", "Or")
    return f"({text})" if is_compound else text


def _operand(kind: str, node: ast.Call, parts: Mapping[str, Any]) -> str:
    if kind == "Decimal":
        return str(ast.literal_eval(node.args[0]))
    if kind == "Field":
        path = ast.literal_eval(parts["path"])
        return ".".join((ast.literal_eval(parts["source"]), *path))
    name: str = ast.literal_eval(parts["name"])
    return name if kind == "Column" else f"header('{name}')"


def _value(node: ast.expr, *, is_time: bool) -> str:
    if is_time and isinstance(node, ast.Constant) and isinstance(node.value, int):
        return f"timestamp '{(_EPOCH + timedelta(microseconds=node.value)).isoformat()}'"
    return _sql(node)


def _literal(node: ast.expr) -> str:
    value = ast.literal_eval(node)
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"X'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("\\", r"\\").replace("'", r"\'") + "'"
    return str(value)


def _enum(node: ast.expr) -> str:
    return _VALUES[ast.unparse(node)]
