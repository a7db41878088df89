"""Reads the formats of the storage plugin: manifests, object names, chunks and envelope
encryption.
"""
