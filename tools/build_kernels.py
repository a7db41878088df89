"""Compiles the kernels into the shared library that `segment_format.kernels.native` loads.

`python -m tools.build_kernels` builds the library for this machine inside the package, unless it is
current. With names of targets as arguments, it builds the libraries of these targets in
`build/kernels`.

Numba translates the kernels to LLVM code, once for each variant of the CPU. Each variant has a
separate process, because numba reads the CPU's features at import. LLVM then compiles the code for
the target. A linker makes the library: `cc` if it exists and the target is this machine, otherwise
zig (package `ziglang`), which also links for other platforms. The library calls only memcpy,
memmove and memset, so it runs with every C library.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segment_format.kernels.native import (
    KERNELS,
    LIBRARY,
    PACKAGE,
    SOURCES_SYMBOL,
    VARIANTS,
    Variant,
    code_digest,
    machine_name,
    open_library,
    source_digest,
    symbol,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parents[1]
_PROVIDED: Final = frozenset({"memcpy", "memmove", "memset"})
_RAISED: Final = -0x6B6572_6E656C_31
"""Return value of a kernel in which numba's code raised an exception. No kernel may return it."""
_ENTRY: Final = """
define i64 @{symbol}({declared}) {{
  %found = alloca i64
  %why = alloca ptr
  %code = call i32 @"{function}"(ptr %found, ptr %why, {passed})
  %fine = icmp eq i32 %code, 0
  %status = load i64, ptr %found
  %answer = select i1 %fine, i64 %status, i64 {raised}
  ret i64 %answer
}}
"""


class Target(NamedTuple):
    """A platform.

    Attributes:
        machine: Type of the machine, a key of `VARIANTS`.
        triple: LLVM's name of the platform.
        zig: Zig's name of the platform, with the oldest supported version.
        tag: Platform tag of a wheel.
    """

    machine: str
    triple: str
    zig: str
    tag: str


TARGETS: Final = {
    f"linux-{machine}": Target(
        machine,
        f"{machine}-unknown-linux-gnu",
        f"{machine}-linux-gnu.2.17",
        f"manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}",
    )
    for machine in ("x86_64", "aarch64")
} | {
    "macos-arm64": Target(
        "aarch64", "arm64-apple-macosx11.0.0", "aarch64-macos.11.0", "macosx_11_0_arm64"
    ),
    "macos-x86_64": Target(
        "x86_64", "x86_64-apple-macosx11.0.0", "x86_64-macos.11.0", "macosx_11_0_x86_64"
    ),
}


def host_target() -> str | None:
    """Returns the name of this machine's target, or `None` if `TARGETS` does not contain it."""
    system = {"Linux": "linux", "Darwin": "macos"}.get(platform.system())
    machine = machine_name()
    name = f"{system}-{'arm64' if (system, machine) == ('macos', 'aarch64') else machine}"
    return name if name in TARGETS else None


def is_current(library: Path) -> bool:
    """Returns whether this machine can load the library, and the sources are unchanged since its
    build.
    """
    try:
        open_library(library)
    except OSError:
        return False
    return True


def build(name: str, library: Path) -> None:
    """Builds the library of a target.

    Args:
        name: Name of the target in `TARGETS`.
        library: Path of the library. An existing file is replaced.

    Raises:
        subprocess.CalledProcessError: A kernel was not compiled, or the linker failed.
    """
    variants = VARIANTS[TARGETS[name].machine]
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder) / f"{variant.name}.o" for variant in variants]
        compilers = [
            subprocess.Popen(
                [sys.executable, "-m", "tools.build_kernels", "--emit", name, variant.name, path],
                cwd=ROOT,
                env={**os.environ, "NUMBA_OPT": "0"},  # LLVM optimizes the complete module
            )
            for variant, path in zip(variants, objects, strict=True)
        ]
        for compiler in compilers:
            if compiler.wait():
                raise subprocess.CalledProcessError(compiler.returncode, compiler.args)
        linked = Path(folder) / "kernels.so"
        subprocess.run([*_linker(name), "-o", linked, *objects], check=True)
        library.parent.mkdir(parents=True, exist_ok=True)
        # Other processes may have opened the old file, so it is replaced, not overwritten.
        partial = library.with_suffix(f".{os.getpid()}")
        shutil.copyfile(linked, partial)
        partial.replace(library)


def _linker(name: str) -> list[str]:
    options = ["-shared", "-s"]
    if name.startswith("linux"):
        options += ["-nostdlib", "-Wl,--build-id=none"]
    if name == host_target() and (cc := shutil.which("cc")):
        if name.startswith("macos"):
            options += ["-undefined", "dynamic_lookup"]
        return [cc, *options]
    if find_spec("ziglang") is None:
        raise SystemExit(f"Cannot link the kernels for {name}: install the package ziglang.")
    return [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[name].zig, *options]


def emit(target: Target, variant: Variant, output: Path) -> None:
    """Compiles all kernels for one variant and writes the object file."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=variant.cpu, features=variant.features, opt=3, reloc="pic", codemodel="default"
    )
    kernels = _kernels(variant)
    sources = _sources()  # now, because files may change while numba compiles
    module = _module(variant, kernels)
    if variant == VARIANTS[target.machine][0]:
        module.link_in(_parsed(sources))
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    exported = {symbol(variant.name, name) for name in KERNELS}
    for function in module.functions:
        if not function.is_declaration and function.name not in exported:
            function.linkage = "internal"
    for variable in module.global_variables:
        if not variable.is_declaration and variable.name != SOURCES_SYMBOL:
            variable.linkage = "internal"
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    # Inlined functions return errors that no caller gets. Remove the code that handles them.
    passes = llvm.create_new_module_pass_manager()
    passes.add_ipsccp_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    _check(module)
    output.write_bytes(machine.emit_object(module))


def _kernels(variant: Variant) -> dict[str, Any]:
    """Imports and returns all kernels of one variant. They are not compiled to machine code,
    because this machine may lack instructions of the variant.
    """
    from numba.core.codegen import AOTCPUCodegen
    from numba.core.registry import cpu_target

    from segment_format.kernels.compiled import OPTIONS, numba_config

    context: Any = cpu_target.target_context
    context.refresh()
    codegen: Any = AOTCPUCodegen
    context._internal_codegen = codegen("kernels")  # noqa: SLF001 - no public way
    # Numba wants a distinct built-in function for each compiled one, and never calls it here.
    context.get_executable = lambda *_: [].append
    OPTIONS.update(no_cpython_wrapper=True, no_cfunc_wrapper=True)
    numba_config.CPU_NAME, numba_config.CPU_FEATURES = variant.cpu, variant.features
    return {
        name: getattr(import_module(f"segment_format.{kernel.module}"), name)
        for name, kernel in KERNELS.items()
    }


def _module(variant: Variant, kernels: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Returns the LLVM code of all kernels. Each kernel also gets a function that C can call."""
    from numba.core.compiler_lock import global_compiler_lock

    module = None
    for name, dispatcher in kernels.items():
        dispatcher.compile(KERNELS[name].signature)
        (result,) = dispatcher.overloads.values()
        with global_compiler_lock:
            result.library.finalize()  # adds the code of the functions that it calls
        count = len(dispatcher.signatures[0])
        entry = _ENTRY.format(
            symbol=symbol(variant.name, name),
            function=result.fndesc.llvm_func_name,
            declared=", ".join(f"i64 %a{number}" for number in range(count)),
            passed=", ".join(f"i64 %a{number}" for number in range(count)),
            raised=_RAISED,
        )
        part = _parsed(result.library.get_llvm_str() + entry)
        if module is None:
            module = part
        else:
            module.link_in(part)
    return module


def _parsed(text: str) -> Any:  # noqa: ANN401  # llvmlite ships no types
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    module.verify()
    return module


def _sources() -> str:
    """Returns LLVM code that defines the digests and paths of the modules that were imported."""
    paths = sorted(
        Path(module.__file__).relative_to(PACKAGE).as_posix()
        for name, module in sys.modules.items()
        if name.startswith("segment_format.") and module.__file__ is not None
    )
    text = ""
    for path in paths:
        source = (PACKAGE / path).read_bytes()
        text += f"{source_digest(source)} {code_digest(source)} {path}\n"
    data = text.encode() + b"\0"
    escaped = "".join(f"\\{byte:02x}" for byte in data)
    constant = f'@text = constant [{len(data)} x i8] c"{escaped}"'
    return f"@{SOURCES_SYMBOL} = constant ptr @text\n{constant}\n"


def _check(module: Any) -> None:  # noqa: ANN401  # llvmlite ships no types
    """Checks the LLVM code of the kernels: they call only the expected functions, and none of them
    raises an exception.
    """
    needed = {
        function.name
        for function in module.functions
        if function.is_declaration and not function.name.startswith("llvm.")
    }
    if missing := needed - _PROVIDED:
        raise SystemExit(f"the kernels call functions that are not allowed: {sorted(missing)}")
    for function in module.functions:
        if f" {_RAISED}" in str(function):
            raise SystemExit(f"{function.name} may raise an exception; it must return a status")


def main() -> None:
    """Builds the library for this machine, or the targets that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET")
    parser.add_argument("--emit", nargs=3, metavar=("TARGET", "VARIANT", "OUTPUT"))
    arguments = parser.parse_args()
    if arguments.emit:
        name, wanted, output = arguments.emit
        target = TARGETS[name]
        (variant,) = (each for each in VARIANTS[target.machine] if each.name == wanted)
        emit(target, variant, Path(output))
        return
    for name in arguments.targets:
        build(name, ROOT / "build" / "kernels" / f"{name}.so")
    host = host_target()
    if arguments.targets or host is None:
        return
    if not is_current(LIBRARY):
        print("compiling the kernels, once for these sources, about 40 s", flush=True)
        build(host, LIBRARY)


if __name__ == "__main__":
    main()
