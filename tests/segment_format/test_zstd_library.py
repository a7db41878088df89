from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from segment_format import zstd_library
from segment_format.zstd_library import decompress_into, iter_pieces, zstd

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = bytes(range(256)) * 40 + b"abc" * 1000
SKIPPABLE = b"\x50\x2a\x4d\x18\x03\0\0\0abc"


def frame(text: bytes, **options: Any) -> bytes:  # noqa: ANN401
    return zstandard.ZstdCompressor(**options).compress(text)


STREAMS: dict[str, tuple[bytes, bytes]] = {
    "with content size": (frame(TEXT), TEXT),
    "without content size": (frame(TEXT, write_content_size=False), TEXT),
    "with checksum": (frame(TEXT, write_checksum=True), TEXT),
    "empty frame": (frame(b""), b""),
    "empty frame without content size": (frame(b"", write_content_size=False), b""),
    "skippable frame": (SKIPPABLE, b""),
    "several frames": (
        SKIPPABLE + frame(TEXT, write_content_size=False) + frame(b"") + SKIPPABLE + frame(b"x"),
        TEXT + b"x",
    ),
    "larger than a piece": (frame(TEXT * 300), TEXT * 300),
}


@pytest.fixture(params=["libzstd", "Python's API"])
def in_new_thread(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], None]], None]:
    """Returns a function that runs another in a new thread, which has no context yet."""
    monkeypatch.setenv("KTS_TUNING", "on" if request.param == "libzstd" else "off")
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        def caught() -> None:
            try:
                work()
                used = zstd_library._thread.context
                assert (used is not None) == (request.param == "libzstd")
            except BaseException as error:  # noqa: BLE001 - raised in the test's thread
                errors.append(error)

        thread = threading.Thread(target=caught)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    return run


def decompressed(stream: bytes, capacity: int) -> bytes:
    """Decompresses into the first `capacity` bytes of a longer buffer."""
    memory = bytearray(b"\xaa" * (capacity + 64))
    size = decompress_into(memoryview(stream), memoryview(memory)[:capacity])
    assert memory[capacity:] == b"\xaa" * 64
    return bytes(memory[:size])


@pytest.mark.parametrize("name", STREAMS)
def test_content_of_frames_fills_target_of_its_size_and_larger_ones(
    name: str, in_new_thread: Callable[[Callable[[], None]], None]
) -> None:
    stream, content = STREAMS[name]

    def work() -> None:
        for capacity in (len(content), len(content) + 1, 2 * len(content) + 1000):
            assert decompressed(stream, capacity) == content

    in_new_thread(work)


@pytest.mark.parametrize("name", [name for name, (_, content) in STREAMS.items() if content])
def test_content_larger_than_target_raises_without_writing_after_it(
    name: str, in_new_thread: Callable[[Callable[[], None]], None]
) -> None:
    stream, content = STREAMS[name]

    def work() -> None:
        memory = bytearray(b"\xaa" * (len(content) + 64))
        for capacity in (0, 1, len(content) // 2, len(content) - 1):
            memory[capacity:] = b"\xaa" * (len(memory) - capacity)
            with pytest.raises(zstd.ZstdError):
                decompress_into(memoryview(stream), memoryview(memory)[:capacity])
            assert set(memory[capacity:]) == {0xAA}
        assert decompressed(stream, len(content)) == content  # the context is usable after errors

    in_new_thread(work)


@pytest.mark.parametrize("name", STREAMS)
def test_truncated_frame_raises(
    name: str, in_new_thread: Callable[[Callable[[], None]], None]
) -> None:
    stream, content = STREAMS[name]

    def work() -> None:
        with pytest.raises(zstd.ZstdError):
            decompressed(stream[:-1], len(content) + 1000)

    in_new_thread(work)


def test_wrong_content_checksum_raises(
    in_new_thread: Callable[[Callable[[], None]], None],
) -> None:
    stream = bytearray(frame(TEXT, write_checksum=True))
    stream[-1] ^= 1

    def work() -> None:
        with pytest.raises(zstd.ZstdError, match=r"(?i)checksum"):
            decompressed(bytes(stream), len(TEXT))

    in_new_thread(work)


@pytest.mark.parametrize("max_bytes", [0, 1, 1000, len(TEXT) * 300 - 1])
def test_pieces_stop_one_byte_after_the_limit(max_bytes: int) -> None:
    pieces = list(iter_pieces(memoryview(frame(TEXT * 300)), max_bytes))
    assert sum(map(len, pieces)) == max_bytes + 1
    assert max(map(len, pieces)) <= 1 << 20


def test_context_is_freed_at_the_end_of_its_thread() -> None:
    freed: list[int] = []
    library: Any = SimpleNamespace(
        ZSTD_createDCtx=lambda: 7,
        ZSTD_freeDCtx=freed.append,
        ZSTD_decompressDCtx=None,
        ZSTD_getErrorName=None,
    )

    def work() -> None:
        zstd_library._thread.context = zstd_library.Context(library)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert freed == [7]


@pytest.fixture
def no_library_yet(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(zstd_library, "_library", zstd_library._library.__wrapped__)
    return monkeypatch


def test_extension_module_exports_functions_of_its_libzstd(
    no_library_yet: pytest.MonkeyPatch,
) -> None:
    library = zstd_library._library()
    assert library is not None
    assert library.ZSTD_versionNumber() == zstd_library._version_number()


def test_other_libzstd_is_not_used(no_library_yet: pytest.MonkeyPatch) -> None:
    no_library_yet.setattr(zstd_library, "_version_number", lambda: 10407)
    assert zstd_library._library() is None


@pytest.mark.parametrize("name", ["sys", "zstandard.backend_c", "no.such.module"])
def test_module_without_exported_functions_is_not_used(
    name: str, no_library_yet: pytest.MonkeyPatch
) -> None:
    no_library_yet.setattr(zstd_library, "_EXTENSION", name)
    assert zstd_library._library() is None
