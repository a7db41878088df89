"""Object bytes by key, range and version: one protocol, a store a kind of storage, wrappers."""
