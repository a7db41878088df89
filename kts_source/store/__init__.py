"""Stores: read object bytes by key, range and version. Contains the protocol, a store per kind of
storage, and wrappers.
"""
