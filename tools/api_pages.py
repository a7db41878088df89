"""Writes the reference of public names as Markdown, from signatures and docstrings."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, Final

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_MARKER: Final = re.compile(r"^<!-- ([\w.]+):begin -->$", re.MULTILINE)
_TITLES: Final = {"raises": "Raises", "returns": "Returns", "yields": "Yields"}
_REQUIRED: Final = "required"


def names_of(page: Path) -> list[str]:
    """Returns the public names that a page describes."""
    return _MARKER.findall(page.read_text())


def reference(page: Path) -> dict[str, str]:
    """Returns the Markdown of each public name of a page."""
    return {name: _described(name) for name in names_of(page)}


@functools.cache
def _loaded() -> griffe.ModulesCollection:
    """Parses both packages. Imports nothing from them."""
    loader = griffe.GriffeLoader(
        extensions=griffe.load_extensions("unpack_typeddict"),
        docstring_parser="google",
        docstring_options={
            "warn_unknown_params": False,
            "warn_missing_types": False,
            "returns_multiple_items": False,
        },
    )
    for package in ("kts_source", "segment_format"):
        loader.load(package)
    loader.resolve_aliases(external=False)
    return loader.modules_collection


def _described(name: str) -> str:
    target = _loaded()[name]
    target = target.final_target if target.is_alias else target
    # The address is in HTML, so that links work on the site and in the repository.
    lines = [f'<a id="{name}"></a>', "", f"## `{name}`", "", *_body(target)]
    if isinstance(target, griffe.Class):
        for member in _members(target):
            if member.is_function or "property" in member.labels:
                lines += ["", f"### `{target.name}.{member.name}`", "", *_body(member)]
    return "\n".join(lines)


def _members(target: griffe.Class) -> list[griffe.Object]:
    """Returns the public members of a class, also inherited ones, without dunder methods."""
    members = {**target.inherited_members, **target.members}
    return [
        member.final_target if isinstance(member, griffe.Alias) else member
        for name, member in members.items()
        if not name.startswith("_")
    ]


def _body(target: griffe.Object) -> list[str]:
    lines = _signature(target)
    sections = target.docstring.parsed if target.docstring else []
    described = _descriptions(target)
    for section in sections:
        if section.kind.value == "text":
            lines += [_fenced(section.value).strip(), ""]
    if isinstance(target, griffe.Class):
        if initializer := _initializer(target):
            lines += _arguments(initializer, described | _descriptions(initializer))
        lines += _fields(target, described)
    elif isinstance(target, griffe.Function):
        lines += _arguments(target, described)
    for section in sections:
        if section.kind.value in _TITLES:
            lines += _results(_TITLES[section.kind.value], section.value)
    return lines[:-1] if lines and not lines[-1] else lines


def _descriptions(target: griffe.Object) -> dict[str, str]:
    """Returns the description of each argument or field in a docstring, by its name."""
    return {
        item.name.lstrip("*"): item.description
        for section in (target.docstring.parsed if target.docstring else [])
        if section.kind.value in ("parameters", "attributes")
        for item in reversed(section.value)
        if item.description
    }


def _initializer(target: griffe.Class) -> griffe.Function | None:
    """Returns the constructor of a class. Returns `None` for a dataclass, because its fields are
    its arguments.
    """
    initializer = target.all_members.get("__init__")
    if isinstance(initializer, griffe.Alias):
        initializer = initializer.final_target
    if target.has_labels("dataclass") or not isinstance(initializer, griffe.Function):
        return None
    return initializer


def _signature(target: griffe.Object) -> list[str]:
    if isinstance(target, griffe.Attribute):
        return [f"Type: {_code(target.annotation)}", ""]
    called = _initializer(target) if isinstance(target, griffe.Class) else target
    if not isinstance(called, griffe.Function):
        return []
    return ["```text", _call(target.name, called), "```", ""]


def _call(name: str, function: griffe.Function) -> str:
    """Returns the text of a call with the required arguments; `…` stands for optional ones."""
    parts = []
    for parameter in _parameters(function):
        if parameter.kind is griffe.ParameterKind.keyword_only and "*" not in parts:
            parts.append("*")
        if parameter.default is None:
            parts.append(_starred(parameter))
    if any(parameter.default is not None for parameter in _parameters(function)):
        parts.append("…")
    end = f" -> {function.returns}" if function.returns else ""
    return f"{name}({', '.join(parts)}){end}"


def _parameters(function: griffe.Function) -> list[griffe.Parameter]:
    return [each for each in function.parameters if each.name not in ("self", "cls")]


def _arguments(function: griffe.Function, described: dict[str, str]) -> list[str]:
    rows = [
        (
            f"`{_starred(each)}`",
            _code(each.annotation),
            _default(each),
            described.get(each.name, ""),
        )
        for each in _parameters(function)
    ]
    return _table(("Argument", "Type", "Default", "Meaning"), rows)


def _starred(parameter: griffe.Parameter) -> str:
    is_tuple = parameter.kind is griffe.ParameterKind.var_positional
    return f"*{parameter.name}" if is_tuple else parameter.name


def _default(parameter: griffe.Parameter) -> str:
    if parameter.default is None:
        return _REQUIRED
    # The description of an optional key of a TypedDict names the default.
    if parameter.default == "..." or parameter.kind is griffe.ParameterKind.var_positional:
        return ""
    return _code(_value(parameter.default))


def _value(default: str | griffe.Expr) -> str | griffe.Expr:
    """Returns a default. If it is the name of a constant, returns the value of the constant."""
    if isinstance(default, griffe.ExprName):
        with contextlib.suppress(KeyError):  # the name is `None`, or belongs to another package
            constant: str | griffe.Expr = _loaded()[default.canonical_path].value
            return constant
    return default


def _fields(target: griffe.Class, described: dict[str, str]) -> list[str]:
    rows = []
    for member in _members(target):
        if isinstance(member, griffe.Attribute) and "property" not in member.labels:
            text = member.docstring.value if member.docstring else described.get(member.name, "")
            value = member.value if member.has_labels("class-attribute") else None
            default = "" if value is None else _code(_value(value))
            rows.append((f"`{member.name}`", _code(member.annotation), default, text))
    return _table(("Field", "Type", "Default", "Meaning"), rows)


def _results(title: str, items: Iterable[griffe.DocstringElement]) -> list[str]:
    lines = []
    for item in items:
        kind = f" {_code(item.annotation)}:" if title == "Raises" else ":"
        lines.append(f"* {title}{kind} {_one_line(item.description)}")
    return [*lines, ""]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    used = [index for index in range(len(header)) if any(row[index] for row in rows)]
    lines = [header, ["---"] * len(header), *rows]
    lines = [[line[index] for index in used] for line in lines]
    return [f"| {' | '.join(map(_one_line, line))} |" for line in lines] + [""]


def _code(value: object) -> str:
    return f"`{_one_line(str(value))}`" if value is not None else ""


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("\\|", "|").replace("|", "\\|")


def _fenced(text: str) -> str:
    """Returns a docstring's text with fences around its indented code."""
    return re.sub(
        r"(?m)^(?: {4}.*\n?)+",
        lambda block: "```text\n" + re.sub("(?m)^ {4}", "", block[0]).rstrip() + "\n```\n",
        text,
    )
