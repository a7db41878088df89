"""Reads the bytes of objects by key, byte range and version. Contains the protocol of stores, a
store for each kind of storage, and stores that wrap other stores.
"""
