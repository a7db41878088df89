"""Runs Apicurio's registry and its Java serializer for Avro values."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple

from segment_format.testing import SimpleRecord
from tests.integration.apicurio import VERSION, apicurio
from tests.integration.java import java
from tests.integration.kafka_jars import class_path as class_path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SERDE = f"io.apicurio:apicurio-registry-serdes-avro-serde:{VERSION}"
HANDLER = {"apicurio.registry.id-handler": "io.apicurio.registry.serde.Legacy4ByteIdHandler"}
HEADERS = "apicurio.registry.headers.enabled"
CONFLUENT = {**HANDLER, "apicurio.registry.use-id": "contentId", HEADERS: "false"}
"""Settings that write values like Confluent's serializers, with ids of the registry's
Confluent-compatible API."""


class Serde(NamedTuple):
    """Apicurio's serializer and its registry.

    Attributes:
        url: URL of the registry's Confluent-compatible API.
        classes: Root of the Java packages in the serializer's JVM.
    """

    url: str
    classes: Any

    @property
    def api(self) -> str:
        """Returns the URL of Apicurio's own API."""
        return self.url.replace("/apis/ccompat/v7", "/apis/registry/v2")

    def settings(self, **more: str) -> dict[str, str]:
        """Returns settings for a serializer that registers schemas; `more` overrides them."""
        own = {"apicurio.registry.url": self.api, "apicurio.registry.auto-register": "true"}
        return own | more

    def serializer(self, **more: str) -> Any:  # noqa: ANN401  # a Java object
        serializer = self.classes.io.apicurio.registry.serde.avro.AvroKafkaSerializer()
        serializer.configure(self.settings(**more), False)
        return serializer

    def schema(self, schema: object) -> Any:  # noqa: ANN401  # a Java object
        parser = getattr(self.classes.org.apache.avro, "Schema$Parser")()
        return parser.parse(json.dumps(schema))

    def value(self, schema: object, row: dict[str, Any]) -> Any:  # noqa: ANN401  # a Java object
        """Converts a row to a record of Avro's Java classes.

        `row` contains values by field, as in Avro's JSON encoding. There, the nullable field `note`
        has a value such as `{"string": "text"}`; here, it may also be just `"text"`.
        """
        parsed, avro = self.schema(schema), self.classes.org.apache.avro
        if isinstance(row.get("note"), str):
            row = {**row, "note": {"string": row["note"]}}
        decoder = avro.io.DecoderFactory.get().jsonDecoder(parsed, json.dumps(row))
        return avro.generic.GenericDatumReader(parsed).read(None, decoder)

    def serialize(
        self, topic: str, schema: object, *rows: dict[str, Any], **more: str
    ) -> list[bytes]:
        serializer = self.serializer(**more)
        return [serializer.serialize(topic, self.value(schema, row)) for row in rows]

    def record(self, topic: str, value: object, serializer: Any) -> SimpleRecord:  # noqa: ANN401  # a Java object
        """Serializes a value as a producer does; returns a record with the serializer's headers."""
        headers = self.classes.org.apache.kafka.common.header.internals.RecordHeaders()
        data = serializer.serialize(topic, headers, value)
        return SimpleRecord(data, None, tuple((h.key(), h.value()) for h in headers.toArray()))


@contextlib.contextmanager
def apicurio_serde() -> Iterator[Serde]:
    """Runs serializer and registry during a `with` block.

    If java or mvn is missing, skips the calling test, or fails it if `KTS_CI_FULL=1`.
    """
    class_path = class_path_of((SERDE,))
    with apicurio() as url, java(class_path) as classes:
        yield Serde(url, classes)


@contextlib.contextmanager
def global_ids(serde: Serde) -> Iterator[None]:
    """Makes the Confluent-compatible API use global schema ids during a `with` block.

    By default it uses content ids. A schema that is registered twice has one content id and two
    global ids.
    """
    name = "registry.ccompat.legacy-id-mode.enabled"
    url = f"{serde.api}/admin/config/properties/{name}"
    headers = {"Content-Type": "application/json"}
    for text in ("true", "false"):
        body = json.dumps({"name": name, "value": text}).encode()
        request = urllib.request.Request(url, body, headers, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        if text == "true":
            yield
