"""Runs kernels from object files, without numba.

Importing numba and loading its cache takes a third of a second, and every new Spark worker would
spend this time before its first row. Linking an object file with LLVM takes milliseconds. So a
process that compiles one of the kernels in `_STORED` also writes an object file next to numba's
cache. Later processes link this file and do not import numba. The object file contains the machine
code of numba's optimized module, without the Python wrapper.

Numba does not document how it passes arrays. So before an object file is written, the signature of
the generated function is compared with the expected signature. If they differ, no file is written,
and numba runs the kernel.

File format: 32 bytes with the SHA-256 of the rest, then an object file in the host's format. LLVM
would abort the process if a file is damaged, so a file with a wrong digest is not loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, Final

import llvmlite.binding as llvm
import numpy as np

from segment_format.kernels.code_folder import code_folder
from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from segment_format._cursor import BytesLike

    Kernel = Callable[[NDArray[np.uint8], BytesLike, NDArray[np.int64]], int]

_STORED: Final = {
    "decode_window": (("window", 1), ("payload", 1), ("frame", 8)),
    "run_avro": (("frame", 8),),
    "mark_repeated": (("frame", 8),),
    "scan_batches": (("frame", 8),),
}
"""Kernels that are stored, with the name and the item size in bytes of each array parameter."""
_FAILED: Final = -(2**63)
_DIGEST_SIZE: Final = 32
_MAX_BYTES: Final = 16 << 20
_FROM_THE_C_LIBRARY: Final = frozenset({"memcpy", "memmove", "memset"})

_ARRAY_FIELDS: Final = ("meminfo", "parent", "nitems", "itemsize", "data", "shape", "strides")
_ARRAY_PASSED_AS: Final = (
    *(("ptr", "0"), ("ptr", "1"), ("i64", "2"), ("i64", "3"), ("ptr", "4")),
    *(("i64", "5.0"), ("i64", "6.0")),
)
_SHIM: Final = """
define i64 @{symbol}({taken}) {{
  %found = alloca i64
  %why = alloca ptr
  store i64 {failed}, ptr %found
  %code = call i32 @{kernel}(ptr %found, ptr %why, {passed})
  %fine = icmp eq i32 %code, 0
  %status = load i64, ptr %found
  %answer = select i1 %fine, i64 %status, i64 {failed}
  ret i64 %answer
}}
"""

_engines: list[Any] = []  # they own the code


def load() -> Kernel | None:
    """Returns `decode_window` from its object file.

    Returns `None` if there is no object file for these sources and this CPU, or if tuning
    (`KTS_TUNING`) or numba's compiler is switched off.
    """
    entry = _linked("decode_window")
    if entry is None:
        return None
    cached = _addresses(np.empty(0, np.uint8), np.empty(0, np.int64))

    def decode_window(
        window: NDArray[np.uint8], payload: BytesLike, frame: NDArray[np.int64]
    ) -> int:
        nonlocal cached
        # `bytes` are passed directly, which takes a tenth of the time.
        payload_pointer = (
            payload if type(payload) is bytes else np.frombuffer(payload, np.uint8).ctypes.data
        )
        current = cached  # other threads replace it as a whole
        if current[0]() is not window or current[1]() is not frame:
            cached = current = _addresses(window, frame)
        _, _, window_address, frame_address = current
        status: int = entry(
            window_address,
            window.size,
            payload_pointer,
            len(payload),
            frame_address,
            frame.size,
        )
        if status == _FAILED:
            raise RuntimeError("the kernel raised an error instead of returning a status")
        return status

    return decode_window


def load_of_frame(name: str) -> Callable[[NDArray[np.int64]], int] | None:
    """Returns a kernel from its object file; `None` in the same cases as `load`. The kernel takes a
    frame as its only argument.

    Args:
        name: Name of the kernel.
    """
    entry = _linked(name)
    if entry is None:
        return None

    def run(frame: NDArray[np.int64]) -> int:
        status: int = entry(frame.ctypes.data, frame.size)
        if status == _FAILED:
            raise RuntimeError("the kernel raised an error instead of returning a status")
        return status

    return run


def _linked(name: str) -> Callable[..., int] | None:
    """Links the object file of a kernel. Returns a function whose arguments are the address and the
    length of each array; `None` if there is no usable file.
    """
    if not is_on() or os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None
    path = _path(name)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
    except OSError:
        return None
    code = data[_DIGEST_SIZE:]
    if hashlib.sha256(code).digest() != data[:_DIGEST_SIZE]:
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    # ctypes releases the GIL while the function runs.
    return _entry(engine.get_function_address(_symbol(name)), name)


def _entry(address: int, name: str) -> Callable[..., int]:
    arrays = [kind for _ in _STORED[name] for kind in (ctypes.c_void_p, ctypes.c_int64)]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *arrays)(address)


def _symbol(name: str) -> str:
    return f"kts_{name}"


def _addresses(window: NDArray[np.uint8], frame: NDArray[np.int64]) -> tuple[Any, Any, int, int]:
    """Returns a weak reference to each of the two arrays, and then the address of each array's
    data. Callers cache the result, because numpy needs much time to return an address.
    """
    addresses = [array.__array_interface__["data"][0] for array in (window, frame)]
    return weakref.ref(window), weakref.ref(frame), addresses[0], addresses[1]


def store(dispatcher: Any) -> None:  # noqa: ANN401  # numba ships no types
    """Writes the object file of a kernel if the kernel is in `_STORED` and was compiled by this
    process. Never raises an error.

    Args:
        dispatcher: The kernel that numba has compiled.
    """
    with contextlib.suppress(Exception):  # only an optimization
        name: str = dispatcher.py_func.__name__
        if name not in _STORED:
            return
        (signature,) = dispatcher.signatures
        path = _path(name)
        fresh = not dispatcher.stats.cache_hits
        if not is_on() or path is None or path.exists() or not fresh:
            return
        _check_conventions(dispatcher.targetctx, signature)
        kernel = dispatcher.overloads[signature].fndesc.llvm_func_name
        text = dispatcher.inspect_llvm(signature)
        code = _emitted(text, name, kernel, dispatcher.targetctx.codegen())
        _write(path, hashlib.sha256(code).digest() + code)


def _path(name: str) -> Path | None:
    folder = code_folder()
    if folder is None:
        return None
    # Include the CPU's features, because a hypervisor may hide some of them.
    features = llvm.get_host_cpu_features().flatten()
    return folder / f"{name}-{hashlib.sha256(features.encode()).hexdigest()[:16]}.o"


def _check_conventions(context: Any, signature: Iterable[object]) -> None:  # noqa: ANN401
    """Checks the parts of numba's calling convention that the parameter types of a generated
    function do not show.

    Raises:
        ValueError: Numba passes arrays in another way than `_shim` expects, or returns another code
            for success.
    """
    from numba.core.callconv import RETCODE_OK

    for argument in signature:
        if context.data_model_manager[argument]._fields != _ARRAY_FIELDS:
            raise ValueError(f"numba passes {argument} with unknown fields")
    if str(RETCODE_OK) != "i32 0":
        raise ValueError(f"numba returns {RETCODE_OK} for success, but i32 0 is expected")


def _check_emitted(function: Any, name: str) -> None:  # noqa: ANN401
    """Checks the parameters of a function that numba generated.

    Raises:
        ValueError: The parameters are not an address for the result, an address for the error, and
            the fields of the expected arrays.
    """
    expected = [("ptr", "retptr"), ("ptr", "excinfo")]
    expected += [
        (kind, f"arg.{array}.{field}")
        for array, _ in _STORED[name]
        for kind, field in _ARRAY_PASSED_AS
    ]
    arguments = [(str(argument.type), argument.name) for argument in function.arguments]
    if arguments != expected or not str(function.global_value_type).startswith("i32 ("):
        raise ValueError(f"the kernel is {function.global_value_type} of {arguments}")


def _shim(name: str, kernel: str) -> str:
    """Returns the LLVM code of a function that calls the kernel `kernel`. The parameters of this
    function are the address and the length of each array.

    The kernel gets arrays without an owner object.
    """
    taken = ", ".join(f"ptr %{array}, i64 %{array}.n" for array, _ in _STORED[name])
    passed = ", ".join(
        f"ptr null, ptr null, i64 %{array}.n, i64 {size}, ptr %{array}, i64 %{array}.n, i64 {size}"
        for array, size in _STORED[name]
    )
    return _SHIM.format(
        symbol=_symbol(name), taken=taken, kernel=kernel, passed=passed, failed=_FAILED
    )


def _emitted(text: str, name: str, kernel: str, codegen: Any) -> bytes:  # noqa: ANN401
    """Compiles the kernel together with the function of `_shim`. Returns the bytes of the object
    file. Only the function of `_shim` can be called from outside.
    """
    # Define an empty destructor, because the arrays have no owners to release.
    text = re.sub(
        r"^declare void @NRT_MemInfo_call_dtor\(ptr\).*$",
        "define void @NRT_MemInfo_call_dtor(ptr %owner) {\n  ret void\n}",
        text,
        flags=re.MULTILINE,
    )
    # Check the types here, because LLVM does not check them in calls.
    _check_emitted(llvm.parse_assembly(text).get_function(kernel), name)
    module = llvm.parse_assembly(text + _shim(name, kernel))
    module.verify()
    for function in module.functions:
        if not function.is_declaration and function.name != _symbol(name):
            function.linkage = "internal"
    triple, cpu, features = codegen.magic_tuple()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu,
        features=features,
        opt=3,
        reloc="static" if triple.startswith(("x86", "i386", "i686")) else "default",
        codemodel="jitdefault",
        jit=True,
    )
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    passes.run(module, llvm.create_pass_builder(machine, tuning))
    wanted = {
        function.name
        for function in module.functions
        if function.is_declaration and not function.name.startswith("llvm.")
    }
    if missing := wanted - _FROM_THE_C_LIBRARY:
        raise ValueError(f"the kernel needs {sorted(missing)}")
    code: bytes = machine.emit_object(module)
    return code


def _write(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)  # noqa: PTH105 - names, not paths
    except BaseException:
        os.unlink(name)  # noqa: PTH108
        raise
