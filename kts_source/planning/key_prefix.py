"""The key prefix that was meant, where nothing is found under the one that was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.layout.layout import Layout
    from kts_source.store.object_store import ObjectStore

MAX_FOLDERS: Final = 8
"""So many folders are looked into: a few listings, whatever the bucket holds."""


def likely_prefixes(
    store: ObjectStore, layout: Layout, given: str, wanted: Iterable[str]
) -> tuple[str, ...]:
    """Prefixes under which there are topics: in the folder of the given one, under which there is
    nothing, else below the root. No topic `wanted` means any.
    """
    topics = tuple(wanted)
    waiting = list(dict.fromkeys((given[: given.rfind("/") + 1], "")))
    looked: set[str] = set()
    found: list[str] = []
    while waiting and len(looked) < MAX_FOLDERS:
        folder = waiting.pop(0)
        if folder in looked:
            continue
        looked.add(folder)
        names = [one.topic for one in layout.topic_folders(store, folder, None)]
        if names:
            found += prefixes_of_names(folder, names, topics) or (folder,)
        else:
            waiting += store.list_folders(folder)
    return tuple(prefix for prefix in dict.fromkeys(found) if prefix != given)


def prefixes_of_names(folder: str, names: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """The prefixes that make some of the folders' names those of wanted topics."""
    ends = ((name, topic) for topic in wanted for name in sorted(names, key=len))
    heads = (name.removesuffix(topic) for name, topic in ends if name.endswith(topic))
    return tuple(dict.fromkeys(folder + head for head in heads))


def did_you_mean(prefixes: Iterable[str]) -> str:
    """The end of an error's text; empty where there is nothing to mean."""
    names = " or ".join(repr(prefix) for prefix in prefixes)
    return f"; did you mean keyPrefix {names}?" if names else ""
