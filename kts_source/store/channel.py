"""A connection that `http.client` reads and writes in place of a socket.

It never waits longer than its reader may, whatever arrives in whatever pieces, and any thread can
wake who waits. Encrypted ones decrypt a large piece at a time: `ssl.SSLSocket` asks the system for
every 16 KiB, and of many threads that do so each waits for Python's lock most of the time.
"""

from __future__ import annotations

import contextlib
import io
import queue
import select
import socket
import ssl
import time
import weakref
from typing import Any, Final

_PIECE_BYTES: Final = 1 << 20
_AT_A_TIME: Final = 2
"""More threads that decrypt at once take a third more processor time, waiting for each other."""


class Channel:
    """A plain connection. One thread at a time uses it, but `interrupt` is for any.

    Args:
        sock: Connected; it is the channel's from now on.
        read_seconds: How long it may be silent while somebody reads or writes.
        ends: When who uses it must be done, by `time.monotonic`; whoever uses it next sets another.

    Attributes:
        has_surplus: Whether more came than the last answer: no request has this as its answer.
    """

    def __init__(self, sock: socket.socket, read_seconds: float, ends: float) -> None:
        self.ends = ends
        self.has_surplus = False
        self._sock = sock
        self._read_seconds = read_seconds
        self._close = weakref.finalize(self, sock.close)  # idle ones go with their client
        self._close.atexit = False
        sock.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)

    @property
    def is_quiet(self) -> bool:
        """Whether the other side neither closed it nor sent what nobody asked for."""
        return not self.has_surplus and not self._readable.poll(0)

    def receive_into(self, view: memoryview) -> int:
        """Waits for bytes, and says how many came; none: the other side has ended.

        Raises:
            TimeoutError: It was silent for too long, or the time is up.
            OSError: The connection failed.
        """
        while True:
            self._require_time()
            with contextlib.suppress(BlockingIOError):
                return self._sock.recv_into(view)
            self._wait(self._readable)

    def interrupt(self) -> None:
        """Whoever waits finds that the other side has ended."""
        with contextlib.suppress(OSError):  # it has, or never began
            self._sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Closes it. More than once does no harm."""
        self._close()

    # -- what http.client wants of a socket

    def makefile(self, _mode: str) -> io.BufferedReader:
        """For the next answer."""
        return _Answer(self)

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Sends a request."""
        left = memoryview(data)
        while left:
            self._require_time()
            try:
                left = left[self._sock.send(left) :]
            except BlockingIOError:
                self._wait(self._writable)

    def close(self) -> None:
        """Nothing: http.client closes sockets before it reads a last answer from them."""

    # -- waiting

    def _require_time(self) -> None:
        if time.monotonic() >= self.ends:
            raise TimeoutError("the time is up")

    def _wait(self, until: select.poll) -> None:
        seconds = min(self._read_seconds, self.ends - time.monotonic())
        if seconds <= 0 or not until.poll(seconds * 1000):
            raise TimeoutError(f"silent for {seconds:.3g} s")


class Tls:
    """What the encrypted connections of a client share.

    Args:
        context: Says whom to trust.

    Attributes:
        free: Whose turn it is to decrypt has one of these pieces of memory.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.free = queue.SimpleQueue[memoryview]()
        for _ in range(_AT_A_TIME):
            self.free.put(memoryview(bytearray(_PIECE_BYTES)))


class TlsChannel(Channel):
    """An encrypted connection; made, it has shaken hands.

    Args:
        sock: As for `Channel`, as are `read_seconds` and `ends`.
        read_seconds: See there.
        ends: Also of the handshake.
        tls: Of its client.
        host: Whose certificate it must be.

    Raises:
        ssl.SSLCertVerificationError: The other side is not whom it should be.
        OSError: The handshake failed.
    """

    def __init__(
        self,
        sock: socket.socket,
        read_seconds: float,
        ends: float,
        *,
        tls: Tls,
        host: str,
    ) -> None:
        super().__init__(sock, read_seconds, ends)
        self._turns = tls.free
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        piece = memoryview(bytearray(16 << 10))
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._arrived(piece, super().receive_into(piece))
        self._flush()

    @property
    def is_quiet(self) -> bool:
        """See `Channel.is_quiet`; what came may be here already."""
        if super().is_quiet:
            with contextlib.suppress(ssl.SSLError):
                try:
                    self._tls.read(1)
                except ssl.SSLWantReadError:
                    return True  # what came besides was no data
        return False

    def receive_into(self, view: memoryview) -> int:
        """See `Channel.receive_into`."""
        while True:
            self._require_time()
            piece = self._turn()
            try:
                size = self._decrypted_into(view, piece)
            finally:
                self._turns.put(piece)
            self._flush()  # an answer to what was no data
            if size is not None:
                return size
            self._wait(self._readable)

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """See `Channel.sendall`."""
        self._tls.write(data)
        self._flush()

    def _turn(self) -> memoryview:
        try:
            return self._turns.get(timeout=max(self.ends - time.monotonic(), 0))
        except queue.Empty:
            raise TimeoutError("others decrypted all the time") from None

    def _flush(self) -> None:
        if self._outgoing.pending:
            super().sendall(self._outgoing.read())

    def _decrypted_into(self, view: memoryview, piece: memoryview) -> int | None:
        """As `receive_into`, but `None` where it would have to wait, or where a piece held no data:
        there may be no end to such pieces.
        """
        size = self._read(view)
        if size is None:
            with contextlib.suppress(BlockingIOError):
                self._arrived(piece, self._sock.recv_into(piece))
                size = self._read(view)
        return size

    def _read(self, view: memoryview) -> int | None:
        """Decrypts what is here; `None`: no data."""
        size = 0
        try:
            while size < len(view):
                # How many: typeshed knows the form without a buffer alone.
                found: Any = self._tls.read(len(view) - size, view[size:])
                if not found:
                    break
                size += found
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLWantReadError:
            return size or None
        return size

    def _arrived(self, piece: memoryview, size: int) -> None:
        if size:
            self._incoming.write(piece[:size])
        else:
            self._incoming.write_eof()


class _Answer(io.BufferedReader):
    """Tells its channel when it has read more than its reader took."""

    def __init__(self, channel: Channel) -> None:
        self._received = _Received(channel)
        super().__init__(self._received)

    def close(self) -> None:
        """See `io.BufferedReader`."""
        if not self.closed:
            self._received.has_ended = True
            self._received.channel.has_surplus = bool(self.peek())
        super().close()


class _Received(io.RawIOBase):
    """The bytes of one answer."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.has_ended = False

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, view: Any) -> int:  # noqa: ANN401  # any buffer
        """See `io.RawIOBase`."""
        if self.has_ended:
            return 0
        return self.channel.receive_into(memoryview(view).cast("B"))
