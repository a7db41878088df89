"""What a storage plugin writes beside the segment bytes: manifest, names, envelope encryption."""
