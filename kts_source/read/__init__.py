"""From a task to Arrow: bytes of the original segment, slice boundaries, decoding, filtering."""
