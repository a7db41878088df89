"""The compiled loops: windows of log bytes in, filled column buffers out. `segment_format.arrow` is
their face.
"""
