"""Contains compiled functions (kernels). They decode windows of log bytes into column buffers.
`segment_format.arrow` has the public functions that use them.
"""
