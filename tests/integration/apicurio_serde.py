"""Apicurio's Java serializer of Avro values, beside its registry."""

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
"""What makes its values those of Confluent's serializers, by ids that the registry's
Confluent-compatible API knows."""


class Serde(NamedTuple):
    """Apicurio's serializer and its registry.

    Attributes:
        url: Of the registry's Confluent-compatible API.
        classes: Of the serializer's JVM.
    """

    url: str
    classes: Any

    @property
    def api(self) -> str:
        """The URL of the registry's own API."""
        return self.url.replace("/apis/ccompat/v7", "/apis/registry/v2")

    def settings(self, **more: str) -> dict[str, str]:
        """What a serializer is configured with."""
        own = {"apicurio.registry.url": self.api, "apicurio.registry.auto-register": "true"}
        return own | more

    def serializer(self, **more: str) -> Any:  # noqa: ANN401  # an object of Java
        made = self.classes.io.apicurio.registry.serde.avro.AvroKafkaSerializer()
        made.configure(self.settings(**more), False)
        return made

    def schema(self, schema: object) -> Any:  # noqa: ANN401  # an object of Java
        parser = getattr(self.classes.org.apache.avro, "Schema$Parser")()
        return parser.parse(json.dumps(schema))

    def value(self, schema: object, row: dict[str, Any]) -> Any:  # noqa: ANN401  # an object of Java
        """A record of Avro's own classes.

        Args:
            schema: Its schema.
            row: As Avro's JSON encoding has it, but for nullable texts.
        """
        parsed, avro = self.schema(schema), self.classes.org.apache.avro
        if isinstance(row.get("note"), str):
            row = {**row, "note": {"string": row["note"]}}
        decoder = avro.io.DecoderFactory.get().jsonDecoder(parsed, json.dumps(row))
        return avro.generic.GenericDatumReader(parsed).read(None, decoder)

    def serialize(
        self, topic: str, schema: object, *rows: dict[str, Any], **more: str
    ) -> list[bytes]:
        made = self.serializer(**more)
        return [made.serialize(topic, self.value(schema, row)) for row in rows]

    def record(self, topic: str, value: object, serializer: Any) -> SimpleRecord:  # noqa: ANN401  # of Java
        """A record as a producer gives it to the serializer, headers included."""
        headers = self.classes.org.apache.kafka.common.header.internals.RecordHeaders()
        data = serializer.serialize(topic, headers, value)
        return SimpleRecord(data, None, tuple((h.key(), h.value()) for h in headers.toArray()))


@contextlib.contextmanager
def apicurio_serde() -> Iterator[Serde]:
    """Serializer and registry, for the block.

    Skips the calling test where java or mvn is absent, or fails it when the run promised them.
    """
    class_path = class_path_of((SERDE,))
    with apicurio() as url, java(class_path) as classes:
        yield Serde(url, classes)


@contextlib.contextmanager
def global_ids(serde: Serde) -> Iterator[None]:
    """The registry's Confluent-compatible API knows schemas by their global ids, for the block."""
    name = "registry.ccompat.legacy-id-mode.enabled"
    place = f"{serde.api}/admin/config/properties/{name}"
    asked = {"Content-Type": "application/json"}
    for text in ("true", "false"):
        body = json.dumps({"name": name, "value": text}).encode()
        request = urllib.request.Request(place, body, asked, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        if text == "true":
            yield
