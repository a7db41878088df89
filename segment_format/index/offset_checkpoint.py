"""The offset checkpoints of a log directory: one offset for each of its partitions. UTF-8 text.

```
0                 version
2                 number of entries
orders 0 4711     topic, partition, offset
orders 1 80
```

One file for each kind of offset: `replication-offset-checkpoint` (high watermarks),
`recovery-point-offset-checkpoint` (below: flushed to disk), `log-start-offset-checkpoint` (only
where it lies above the first segment).

Source: `CheckpointFile`, `OffsetCheckpointFile` in Kafka.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from segment_format._cursor import byte_view
from segment_format.errors import CorruptIndexError

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike

VERSION: Final = b"0"
_ENTRY: Final = re.compile(rb"([a-zA-Z0-9._-]{1,249})\s+([0-9]{1,10})\s+([0-9]{1,19})\s*")
_MAX_OFFSET: Final = 2**63 - 1


def parse_offset_checkpoint(data: BytesLike) -> dict[tuple[str, int], int]:
    """Topic and partition to offset; memory is proportional to the size of `data`.

    Raises:
        CorruptIndexError: Not the text described above, or a partition stands there twice.
    """
    lines = byte_view(data).tobytes().splitlines(keepends=True)
    if len(lines) < 2 or lines[0].strip() != VERSION or not lines[1].strip().isdigit():
        raise CorruptIndexError("offset checkpoint: no version 0 and count in front", position=0)
    if int(lines[1]) != len(lines) - 2:
        raise CorruptIndexError(
            f"offset checkpoint: {int(lines[1])} entries stated, {len(lines) - 2} lines found",
            position=len(lines[0]),
        )
    found: dict[tuple[str, int], int] = {}
    position = len(lines[0]) + len(lines[1])
    for line in lines[2:]:
        match = _ENTRY.fullmatch(line)
        place = (match[1].decode(), int(match[2])) if match else None
        if match is None or place is None or place in found or int(match[3]) > _MAX_OFFSET:
            raise CorruptIndexError(
                f"offset checkpoint: {line[:80]!r} is not a topic, a partition and its offset, or"
                " comes twice",
                position=position,
            )
        found[place] = int(match[3])
        position += len(line)
    return found
