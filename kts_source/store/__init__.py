"""Reads the bytes of objects by key, byte range and version. Contains the protocol of all stores,
one store per kind of storage, and stores that combine other stores.
"""
