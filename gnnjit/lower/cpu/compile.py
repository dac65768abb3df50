"""From LLVM IR to machine code for this host."""

from __future__ import annotations

import functools
import hashlib
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu import ffi_abi, kept_code, support
from gnnjit.lower.cpu.control_flow import PART, PARTS
from gnnjit.lower.cpu.entry_points import EntryPoints
from gnnjit.lower.cpu.ffi_handler import Handler
from gnnjit.lower.cpu.sorting import SortKernel
from gnnjit.lower.cpu.spec import Spec
from gnnjit.system import collection
from gnnjit.system.cpu_features import is_x86, vector_bytes


def why_not_here() -> list[str]:
    """Reasons why this machine or this jaxlib cannot run generated kernels."""
    if sys.maxsize < 2**32 or sys.byteorder != "little" or sys.platform == "win32":
        return ["CPU kernels need a 64-bit little-endian Unix"]
    layout = ffi_abi.read_abi()
    return [layout] if isinstance(layout, str) else []


@functools.cache
def _machine() -> llvm.TargetMachine:
    return machine_of(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def machine_of(cpu: str, features: str = "") -> llvm.TargetMachine:
    """What makes code for a processor of this architecture."""
    if is_x86():
        features = ",".join(filter(None, [features, *_X86_WITHOUT]))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=3, jit=True)


_X86_WITHOUT = ("-fast-variable-crosslane-shuffle",)
"""A flag that LLVM sets for Intel's processors, not for AMD's. With it and AVX-512, LLVM 22 ends
the process with an assertion in some networks of 4 to 16 features."""


def emit(
    spec: Spec, entry: str = "entry", kind: Callable[[Spec, ir.Module], Handler] = Handler
) -> str:
    """The kernel's LLVM IR; raises `Unsupported` where there is no code for something."""
    module, _ = _empty_module()
    with collection.put_off():
        kind(spec, module).emit(entry)
        return str(module)


def emit_sort(dtype: np.dtype, entry: str = "entry") -> str:
    """The LLVM IR of the sort of edges whose indices are of a type."""
    module, layout = _empty_module()
    SortKernel(dtype, module, layout).emit(entry)
    return str(module)


def emit_entry_points() -> str:
    """The LLVM IR of the entry points that exist before their kernels do."""
    module, layout = _empty_module()
    EntryPoints(module, layout).emit()
    return str(module)


def load(code: bytes) -> llvm.ExecutionEngine:
    """The functions of object files (`object_code`), for as long as the result is kept."""
    _support()
    return _load(code)


@functools.cache
def _support() -> llvm.ExecutionEngine:
    """What all kernels call: made once, and known to LLVM by name."""
    key = kept_code.key(["support"])
    found = kept_code.load(key)
    if found is None:
        module, layout = _empty_module()
        with collection.put_off():
            support.Support(module, layout, is_x86(), vector_bytes() // 4).emit()
            text = str(module)
        found = kept_code.KeptKernel("support", text.count("\n"), object_code(text))
        kept_code.store(key, found)
    engine = _load(found.code)
    for name in support.NAMES:
        llvm.add_symbol(name, engine.get_function_address(name))
    return engine


def _load(code: bytes) -> llvm.ExecutionEngine:
    module, _ = _empty_module()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), _machine())
    for each in _unbundled(code):
        engine.add_object_file(llvm.ObjectFileRef.from_data(each))
    engine.finalize_object()
    return engine


def _empty_module() -> tuple[ir.Module, ffi_abi.Abi]:
    layout = ffi_abi.read_abi()
    assert isinstance(layout, ffi_abi.Abi), layout
    module = ir.Module("gnnjit")
    module.triple, module.data_layout = _target()
    return module, layout


@functools.cache
def _target() -> tuple[str, str]:
    """Asked once: LLVM answers no question while it compiles in another thread."""
    return _machine().triple, str(_machine().target_data)


PASSES = (
    "sroa",
    "simplify_cfg",
    "loop_rotate",
    "instruction_combine",
    "simplify_cfg",
)
"""LLVM's passes that run: the generator leaves variables on the stack, and the rest to the code
generator. All passes of level 3 took three times as long and made no kernel faster."""


def optimised(text: str) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    for name in PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, llvm.create_pass_builder(_machine(), llvm.create_pipeline_tuning_options()))
    return module


def name_of(text: str) -> str:
    """The name of a kernel's custom call: a hash of its IR, so that a compiled program from XLA's
    persistent cache finds it."""
    return "gnnjit_cpu_" + hashlib.sha256(text.encode()).hexdigest()[:24]


def object_code(text: str) -> bytes:
    """The object files of a kernel's IR, and of the parts that it calls (`Emitter.call_shared`)."""
    return _bundled([_machine().emit_object(optimised(text)), *map(_part, parts_of(text))])


def parts_of(text: str) -> list[str]:
    """The names of the parts that a kernel's IR calls."""
    return sorted({name for name in _PART.findall(text) if name in PARTS})


def with_parts(text: str) -> str:
    """A kernel's IR, and after it that of its parts, to be read."""
    return "\n".join([text, *(PARTS[name] for name in parts_of(text))])


_PART = re.compile(rf'declare void @"({PART}\w+)"')


@functools.cache
def _part(name: str) -> bytes:
    """The object file of a part. Once in a process, whichever kernels call it."""
    return _machine().emit_object(optimised(PARTS[name]))


_SIZE = struct.Struct("<Q")


def _bundled(files: Sequence[bytes]) -> bytes:
    return b"".join(_SIZE.pack(len(file)) + file for file in files)


def _unbundled(code: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(code):
        since = at + _SIZE.size
        at = since + _SIZE.unpack_from(code, at)[0]
        yield code[since:at]
