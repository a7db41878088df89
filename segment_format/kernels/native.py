"""Loads compiled kernels.

`tools/build_kernels.py` compiles all kernels into one shared library next to this module, in
variants for different CPUs. `load_kernel` opens this library and chooses the variant for this CPU,
so neither numba nor LLVM is imported. If there is no usable library, numba compiles the kernels
when they are first used. Numba caches the machine code in the user's cache folder, in a folder of
its own for each version of the sources. If this folder cannot be written, each process compiles the
kernels.

The library contains the paths and digests of the sources from which it was compiled. It is not used
if code in a source has changed; changes of comments and docstrings do not matter.

`KTS_KERNELS` in the environment names the variant to use, or `jit` for numba.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import platform
import stat
import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


_PACKAGE: Final = Path(__file__).parents[1]
_NOTICE: Final = "compiling kernels, once per machine, about 20 s"


def compile_kernel(name: str, module: str, signature: str, reason: str) -> Callable[..., int]:
    """Returns the kernel `name` of `module` (a module below `segment_format`), which numba compiles
    now, or has compiled before. `reason` says why the kernel is not taken from the library.

    Raises:
        ImportError: numba is not installed.
    """
    try:
        from segment_format.kernels.compiled import numba_config
    except ModuleNotFoundError as error:
        raise ImportError(
            f"No compiled kernels: {reason}. In a checkout, run `make kernels`."
            " On a platform without a wheel, install numba: the extra `jit` of tiered-kafka."
        ) from error
    dispatcher: Any = getattr(import_module(f"segment_format.{module}"), name)
    folder = _cache_folder()
    if folder is None or not any(folder.rglob(f"*.{name}-*.nbi")):
        sys.stderr.write(f"tiered-kafka: {_NOTICE} ({reason})\n")
    if folder is not None:
        numba_config.CACHE_DIR = str(folder)
        dispatcher.enable_caching()
    dispatcher.compile(signature)
    compiled: Callable[..., int] = dispatcher
    return compiled


def _cache_folder() -> Path | None:
    """Returns the folder for the machine code of these sources; `None` if other users could write
    to it.
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    digest = hashlib.sha256()
    try:
        for part in ("kernels", "values"):
            for path in sorted((_PACKAGE / part).rglob("*.py")):
                digest.update(path.read_bytes())
        folder = Path(home) / "tiered-kafka" / f"kernels-{digest.hexdigest()[:16]}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except (OSError, RuntimeError):
        return None
    is_private = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
    return folder if is_private else None


PACKAGE: Final = Path(__file__).parents[1]
LIBRARY: Final = PACKAGE / "kernels" / "kernels.so"
SOURCES_SYMBOL: Final = "kts_sources"
JIT: Final = "jit"
_CPU_INFO: Final = Path("/proc/cpuinfo")
_CPU_INFO_BYTES: Final = 1 << 14  # the first CPU is enough; all CPUs take long on large machines


class Kernel(NamedTuple):
    """A compiled function.

    Attributes:
        module: Module below `segment_format` that defines it.
        signature: Types of the result and of the parameters. Addresses are uint64.
    """

    module: str
    signature: str


KERNELS: Final = {
    "decode_window": Kernel("kernels.decode_window", "int64(uint64, int64, uint64, int64, uint64)"),
    "scan_batches": Kernel("kernels.scan_batches", "int64(uint64)"),
    "mark_repeated": Kernel("values.map_key_kernel", "int64(uint64)"),
    "run_avro": Kernel("values.avro.kernel", "int64(uint64)"),
    "read_rows": Kernel("values.json.rows", "int64(uint64)"),
    "texts_size": Kernel("values.json.rows", "int64(uint64, int64)"),
    "gather_texts": Kernel(
        "values.json.rows", "void(uint64, int64, uint64, uint64, uint64, uint64, uint64)"
    ),
    "gather_base64": Kernel(
        "values.json.rows", "void(uint64, int64, uint64, uint64, uint64, uint64)"
    ),
    "discard_row": Kernel("values.json.values", "void(uint64, int64)"),
    "decode_values": Kernel("values.protobuf.kernel", "int64(uint64)"),
    "match_heads": Kernel(
        "values.protobuf.head_kernel",
        "int64(uint64, int64, uint64, uint64, uint64, int64, uint64, uint64)",
    ),
}


class Variant(NamedTuple):
    """CPUs for which the kernels are compiled.

    Attributes:
        name: Part of the symbols in the library.
        cpu: LLVM's name of the CPU.
        features: CPU features that LLVM may use in addition to those of `cpu`.
        flags: Features that Linux reports in `/proc/cpuinfo` if a CPU can run the code.
    """

    name: str
    cpu: str
    features: str
    flags: frozenset[str]


_V2: Final = frozenset({"ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm"})
_V3: Final = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
_V4: Final = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
VARIANTS: Final = {
    "x86_64": (
        Variant(
            "avx512", "x86-64-v4", "+sse4.2,+crc32,+pclmul,+avx512f,+vpclmulqdq",
            _V2 | _V3 | _V4 | {"vpclmulqdq", "pclmulqdq"},
        ),
        Variant("sse42", "x86-64-v2", "+sse4.2,+crc32", _V2),
    ),
    "aarch64": (Variant("crc", "generic", "+crc", frozenset({"crc32"})),),
}  # fmt: skip
"""Variants by type of machine, the fastest one first."""


@lru_cache
def load_kernel(name: str) -> Callable[..., int]:
    """Returns a kernel. All parameters are numbers, including addresses.

    Args:
        name: Name of the kernel in `KERNELS`.

    Raises:
        ImportError: There is no usable library, and numba is not installed.
    """
    library = _library()
    if isinstance(library, str):
        return compile_kernel(name, *KERNELS[name], library)
    return library_kernel(*library, name)


def library_kernel(library: ctypes.CDLL, variant: str, name: str) -> Callable[..., int]:
    """Returns a kernel of an open library."""
    function = library[symbol(variant, name)]  # a new object for each access by index
    function.restype = ctypes.c_int64
    function.argtypes = [ctypes.c_int64] * (1 + KERNELS[name].signature.count(","))
    return function


def symbol(variant: str, name: str) -> str:
    """Returns the name of a kernel in the library."""
    return f"kts_{variant}_{name}"


@lru_cache(1)
def _library() -> tuple[ctypes.CDLL, str] | str:
    """Returns the library and the variant for this CPU, or the reason why there is none."""
    wanted = os.environ.get("KTS_KERNELS")
    if wanted == JIT:
        return f"KTS_KERNELS={JIT}"
    try:
        library = open_library(LIBRARY)
    except OSError as error:
        return str(error)
    variants = [variant.name for variant in variants_of_cpu()]
    if wanted is not None and wanted not in variants:
        raise ImportError(f"KTS_KERNELS={wanted}: this CPU runs {', '.join((*variants, JIT))}")
    if not variants:
        return "this CPU is older than those for which the kernels were compiled"
    return library, wanted or variants[0]


def open_library(path: Path) -> ctypes.CDLL:
    """Opens a library of kernels.

    Raises:
        OSError: The library does not exist, is for another machine, or was compiled from other
            sources.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    library = ctypes.CDLL(str(path))
    try:
        sources = ctypes.c_char_p.in_dll(library, SOURCES_SYMBOL).value or b""
    except ValueError:
        raise OSError(f"{path} is not a library of kernels") from None
    for line in sources.decode().splitlines():
        *digests, name = line.split(" ")
        source = (PACKAGE / name).read_bytes()
        if source_digest(source) not in digests and code_digest(source) not in digests:
            raise OSError(f"{path} was compiled before {name} changed")
    return library


def source_digest(source: bytes) -> str:
    """Returns a digest of a source file."""
    return hashlib.sha256(source).hexdigest()


def code_digest(source: bytes) -> str:
    """Returns a digest of a source file without comments and docstrings. Slow, so it is only used
    if the file has changed.
    """
    import tokenize

    lines = source.decode().splitlines()
    line_starts = {tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE}
    previous = [tokenize.NEWLINE, tokenize.NEWLINE]  # types of the two tokens before
    last = None
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
        if token.type in {tokenize.ENCODING, tokenize.COMMENT, tokenize.NL}:
            continue
        if (
            last is not None
            and token.type == tokenize.NEWLINE
            and previous[0] in line_starts
            and previous[1] == tokenize.STRING
        ):  # the line was a docstring
            first, stop = last.start[0] - 1, last.end[0]
            lines[first:stop] = [""] * (stop - first)
        last = token
        previous = [previous[1], token.type]
    return source_digest("\n".join(line.rstrip() for line in lines if line.strip()).encode())


def variants_of_cpu() -> tuple[Variant, ...]:
    """Returns the variants that this CPU can run, the fastest one first."""
    machine = machine_name()
    variants = VARIANTS.get(machine, ())
    if sys.platform == "darwin":
        return variants[-1:]  # every Mac on which Python 3.11 runs can run the last one
    try:
        with _CPU_INFO.open("rb") as file:
            flags = set(file.read(_CPU_INFO_BYTES).decode("ascii", "replace").split())
    except OSError:
        return ()
    return tuple(variant for variant in variants if variant.flags <= flags)


def machine_name() -> str:
    """Returns the type of this machine as in `VARIANTS`, or another name."""
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name := platform.machine().lower(), name)
