"""From `Tls` to Python's `ssl`: whom to believe, what to show, which versions to speak."""

from __future__ import annotations

import base64
import functools
import os
import ssl
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.broker.settings import TLS_1_2, TLS_1_3
from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.broker.settings import Security, Tls

_VERSIONS: Final = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}


def ssl_context(security: Security) -> ssl.SSLContext:
    """What wraps the sockets of a worker to brokers.

    Raises:
        InvalidOptionError: See `tls_context`.
    """
    assert security.tls is not None, security.protocol
    return tls_context(security.tls, "kafka.ssl.truststore.…", "kafka.ssl.keystore.…")


@functools.lru_cache(maxsize=8)
def tls_context(tls: Tls, trust_options: str, key_options: str) -> ssl.SSLContext:
    """What wraps sockets; made once, since reading the authorities of the machine takes as long as
    a handshake.

    Args:
        tls: Whom to believe, what to show.
        trust_options: Names of the options that say whom, for errors.
        key_options: Names of those that say what.

    Raises:
        InvalidOptionError: Certificates or a key that OpenSSL does not take, or that do not belong
            together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificates, and names for now
    context.check_hostname = tls.check_host_name
    context.minimum_version = _VERSIONS[tls.oldest]
    context.maximum_version = _VERSIONS[tls.newest]
    # What is trusted is trusted, as in Java: also a certificate that another one has signed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.trusted:
        try:
            context.load_verify_locations(cadata=b"".join(tls.trusted))
        except ssl.SSLError:
            raise InvalidOptionError(
                f"OpenSSL does not take the certificates of options {trust_options}"
            ) from None
    else:
        context.load_default_certs()
    if tls.chain:
        _show(context, tls, key_options)
    return context


def _show(context: ssl.SSLContext, tls: Tls, options: str) -> None:
    """Has the context show our certificate. `ssl` takes files only."""
    blocks = [_pem("PRIVATE KEY", tls.key), *(_pem("CERTIFICATE", one) for one in tls.chain)]
    try:
        with _file_of("".join(blocks).encode()) as path:
            context.load_cert_chain(path)
    except ssl.SSLError:
        raise InvalidOptionError(
            f"OpenSSL does not take the key and the certificates of options {options}: the first"
            " certificate must be the key's"
        ) from None


@contextmanager
def _file_of(data: bytes) -> Iterator[str]:
    """A path that holds the bytes: of memory where the system can, else of a file of mode 0600 that
    is deleted at once.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    descriptor, path = tempfile.mkstemp(prefix="tls-")  # 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        yield path
    finally:
        Path(path).unlink()


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(der).decode()}-----END {label}-----\n"
