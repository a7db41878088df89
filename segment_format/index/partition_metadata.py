"""The file `partition.metadata` of a partition's folder: the topic id. UTF-8 text.

```
version: 0
topic_id: LWgrMmVrT0a__7a4SasuPA
```

Source: `PartitionMetadataFile` in Kafka.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from segment_format._cursor import byte_view
from segment_format.errors import CorruptIndexError
from segment_format.kafka_uuid import uuid_from_text

if TYPE_CHECKING:
    import uuid

    from segment_format._cursor import BytesLike

_TEXT: Final = re.compile(rb"version: 0\s+topic_id: ([A-Za-z0-9_-]{22})\s*")


def parse_partition_metadata(data: BytesLike) -> uuid.UUID:
    """The topic id.

    Raises:
        CorruptIndexError: Not the text described above.
    """
    match = _TEXT.fullmatch(byte_view(data).tobytes())
    if match is None:
        raise CorruptIndexError("partition.metadata: no version 0 with a topic id", position=0)
    return uuid_from_text(match[1].decode())
