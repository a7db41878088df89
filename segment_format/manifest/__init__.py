"""Objects of the storage plugin: manifest, names, chunks, envelope encryption."""
