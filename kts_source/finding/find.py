"""`kts_source.find(source, …)`: starts a search. Topics may have options of their own, such as
`value.format`; they are searched one after the other.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Unpack

from kts_source.errors import InvalidOptionError
from kts_source.finding.query import query_of
from kts_source.finding.search import Search
from kts_source.options import check_for_batch, parse_any_options
from kts_source.planning.infer_types import with_types
from kts_source.planning.topic_options import for_each_topic, sources_by_topic
from kts_source.texts import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    import pyarrow as pa

    from kts_source.finding.certificate import Certificate
    from kts_source.finding.query import Conditions, Query
    from kts_source.options import Options

_TASK_BYTES: Final = 32 << 20
"""Default size of a task. As in scans, tasks are small, because ordered threads may wait for a
whole task.
"""


def find(
    source: Options,
    *,
    topic_options: Mapping[str, Options] = MappingProxyType({}),
    **conditions: Unpack[Conditions],
) -> Search:
    """Finds all records of the topics that meet the conditions, and certifies which offsets were
    searched.

    The search starts when rows are requested. Before that, this function reads the store only to
    infer the type of JSON without a schema, and to list topics for `topic_options` with
    `subscribePattern`.

    Args:
        source: Options as for `spark.read.format("tiered-kafka")`. Option `where` is one of the
            conditions, and `columns` selects the columns of the rows.
        topic_options: Options of single topics, by topic, such as `value.format`. They take
            precedence over `source`. The types of keys and values may then differ by topic.
        **conditions: See `Conditions`.

    Raises:
        InvalidOptionError: Options or conditions are unknown, malformed or contradictory.
    """
    query = query_of(**conditions)
    if not topic_options:
        return _search("", source, query)
    sources = sources_by_topic(source, topic_options)
    return SearchByTopic(for_each_topic(sources, partial(_search, query=query)))


def _search(_topic: str, source: Options, query: Query) -> Search:
    check_for_batch(options := parse_any_options(source))
    if "targetPartitionBytes" not in options.given:
        options = replace(options, target_partition_bytes=_TASK_BYTES)
    # The certificate lists missing offsets, so they must not prevent that a type is inferred.
    formats = with_types(replace(options, fail_on_data_loss=False)).formats
    return Search(replace(options, formats=formats, key_ring=options.key_ring.loaded()), query)


class SearchByTopic(Search):
    """A search with options of its own for each topic. Batches of different topics may have
    different types of keys and values.

    Args:
        searches: The search of each topic, in order of topics. All have the same query.
    """

    def __init__(self, searches: Mapping[str, Search]) -> None:
        self._searches = searches

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows.

        Raises:
            InvalidOptionError: It differs by topic.
        """
        (first, schema), *others = (
            (topic, search.schema) for topic, search in self._searches.items()
        )
        for topic, other in others:
            if not other.equals(schema):
                raise InvalidOptionError(
                    f"the rows of topics {first} and {topic} have different columns, so one table"
                    " cannot have both: use batches(), or set option columns to columns with the"
                    " same type in all topics"
                )
        return schema

    @property
    def nominal_bytes(self) -> int:
        """Bytes of the original segment files of all tasks; see `Search.nominal_bytes`."""
        return sum(search.nominal_bytes for search in self._searches.values())

    def batches(
        self,
        *,
        threads: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Generator[pa.RecordBatch]:
        """Yields the records in order of topic, partition and offset; see `Search.batches`."""
        sizes = {topic: each.nominal_bytes for topic, each in self._searches.items()}
        before = 0
        for topic, search in self._searches.items():
            del sizes[topic]
            after = sum(sizes.values())
            total = 0

            def report(read: int, size: int, before: int = before, after: int = after) -> None:
                nonlocal total
                total = size
                if progress is not None:
                    progress(before + read, before + size + after)

            with closing(search.batches(threads=threads, progress=report)) as batches:
                yield from batches
            before += total

    @property
    def certificate(self) -> Certificate:
        """The certificate of all topics; available after `batches` was read to the end.

        Raises:
            RuntimeError: `batches` was not read to the end.
        """
        proofs = {topic: search.certificate for topic, search in self._searches.items()}
        all_of = proofs.values()

        def merged(name: str) -> tuple[str, ...]:
            return _merged({topic: getattr(proof, name) for topic, proof in proofs.items()})

        return replace(
            next(iter(all_of)),
            searched_ms=min(proof.searched_ms for proof in all_of),
            path=_joined(proof.path for proof in all_of),
            isolation_level=_joined(proof.isolation_level for proof in all_of),
            conditions=merged("conditions"),
            formats=merged("formats"),
            assumptions=merged("assumptions"),
            outside=tuple(dict.fromkeys(text for proof in all_of for text in proof.outside)),
            faults=tuple(dict.fromkeys(text for proof in all_of for text in proof.faults)),
            partitions=tuple(each for proof in all_of for each in proof.partitions),
            requests=sum(proof.requests for proof in all_of),
            bytes=sum(proof.bytes for proof in all_of),
        )

    def _tables(self) -> tuple[Table]:
        columns = {
            topic: ", ".join(search.schema.names) for topic, search in self._searches.items()
        }
        return (Table.of_facts("Search: columns of each topic", columns),)


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _merged(by_topic: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the texts of all topics. A text that some topics lack begins with its topic."""
    merged = dict.fromkeys(
        text if all(text in others for others in by_topic.values()) else f"{topic}: {text}"
        for topic, texts in by_topic.items()
        for text in texts
    )
    return tuple(merged)
