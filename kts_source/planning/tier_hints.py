"""Suggests a key prefix or a layout if a tier was not found."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from kts_source.layout.find_layout import BUILT_IN_LAYOUTS, find_layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.layout.layout import Layout
    from kts_source.store.object_store import ObjectStore

MAX_FOLDERS: Final = 8
"""Maximum number of folders to list to suggest a key prefix."""
_MAX_TOPICS: Final = 3
"""Maximum number of topic folders that must show whether a layout fits."""


def hint_of_tier(store: ObjectStore, layout: Layout, key_prefix: str, wanted: Iterable[str]) -> str:
    """Returns a suggestion for the end of an error message: key prefixes, or another layout.
    Returns an empty text if there is no suggestion.
    """
    if prefixes := likely_prefixes(store, layout, key_prefix, wanted):
        return did_you_mean(prefixes).removeprefix("; ")
    for name in BUILT_IN_LAYOUTS:
        if name == layout.name:
            continue
        other = find_layout(name)
        if has_partitions(store, other, key_prefix):
            return f"the objects have layout {name!r}: set layout={name}"
        if prefixes := likely_prefixes(store, other, key_prefix, ()):
            return (
                f"the objects have layout {name!r}: set layout={name} and keyPrefix {prefixes[0]!r}"
            )
    return ""


def has_partitions(store: ObjectStore, layout: Layout, key_prefix: str) -> bool:
    """Returns whether topic folders under a key prefix contain partitions. Folders of another
    layout may have the same names, but they contain no partitions.
    """
    folders = islice(layout.topic_folders(store, key_prefix, None), _MAX_TOPICS)
    return any(layout.partitions(store, folder) for folder in folders)


def likely_prefixes(
    store: ObjectStore, layout: Layout, key_prefix: str, wanted: Iterable[str]
) -> tuple[str, ...]:
    """Suggests key prefixes to try instead of `key_prefix`.

    Searches the parent folder of `key_prefix` and the root of the store, and their subfolders down
    to the first folder with topics. Looks at no more than `MAX_FOLDERS` folders.

    Args:
        store: Store of the tier.
        layout: Layout that recognizes the folders of topics.
        key_prefix: Prefix under which no topic was found. The result does not contain this prefix.
        wanted: Names of topics. If a folder has topics whose names end with one of them, the result
            has the prefixes of these topics. For another folder with topics, the result has the
            folder itself.
    """
    topics = tuple(wanted)
    waiting = list(dict.fromkeys((key_prefix[: key_prefix.rfind("/") + 1], "")))
    visited: set[str] = set()
    prefixes: list[str] = []
    while waiting and len(visited) < MAX_FOLDERS:
        folder = waiting.pop(0)
        if folder in visited:
            continue
        visited.add(folder)
        names = [incarnation.topic for incarnation in layout.topic_folders(store, folder, None)]
        if names:
            prefixes += prefixes_of_names(folder, names, topics) or (folder,)
        else:
            waiting += store.list_folders(folder)
    others = (prefix for prefix in dict.fromkeys(prefixes) if prefix != key_prefix)
    return tuple(prefix for prefix in others if has_partitions(store, layout, prefix))


def prefixes_of_names(folder: str, names: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Returns the key prefixes with which a scan would find the topics in `wanted`, according to
    the names of folders. Example: for topic `orders` and a folder `kts-orders`, the prefix is
    `kts-`.
    """
    ends = ((name, topic) for topic in wanted for name in sorted(names, key=len))
    heads = (name.removesuffix(topic) for name, topic in ends if name.endswith(topic))
    return tuple(dict.fromkeys(folder + head for head in heads))


def did_you_mean(prefixes: Iterable[str]) -> str:
    """Returns a suggestion of key prefixes for the end of an error message; an empty text if there
    are no prefixes.
    """
    names = " or ".join(repr(prefix) for prefix in prefixes)
    return f"; did you mean keyPrefix {names}?" if names else ""
