"""Where a tier's segments stand, and what their manifests say."""
