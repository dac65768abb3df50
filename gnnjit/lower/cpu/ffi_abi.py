"""The C layout of XLA's typed FFI, read from the header that ships with jaxlib.

The generated handler reads XLA's call frame by struct offsets. Rather than trusting that they
stay as they were, the field lists of the structs that it touches are parsed from the installed
`c_api.h` and compared with the ones this package was written for; a difference turns the CPU
kernels off (with the reason) before any handler could run.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re

import jax

FIELDS = {
    "XLA_FFI_Buffer": ["struct_size", "extension_start", "dtype", "data", "rank", "dims"],
    "XLA_FFI_Args": ["struct_size", "extension_start", "size", "types", "args"],
    "XLA_FFI_Rets": ["struct_size", "extension_start", "size", "types", "rets"],
    "XLA_FFI_Attrs": ["struct_size", "extension_start", "size", "types", "names", "attrs"],
    "XLA_FFI_CallFrame": [
        "struct_size",
        "extension_start",
        "api",
        "ctx",
        "stage",
        "args",
        "rets",
        "attrs",
        "future",
    ],
    "XLA_FFI_Api_Version": ["struct_size", "extension_start", "major_version", "minor_version"],
    "XLA_FFI_Metadata": ["struct_size", "api_version", "traits", "state_type_id"],
    "XLA_FFI_Metadata_Extension": ["extension_base", "metadata"],
    "XLA_FFI_ThreadPool_Schedule_Args": ["struct_size", "extension_start", "ctx", "task", "data"],
    "XLA_FFI_Error_Create_Args": ["struct_size", "extension_start", "message", "errc"],
    "XLA_FFI_Error_Destroy_Args": ["struct_size", "extension_start", "error"],
    "XLA_FFI_Future_Create_Args": ["struct_size", "extension_start", "future"],
    "XLA_FFI_Future_SetAvailable_Args": ["struct_size", "extension_start", "future"],
}
"""The fields, in order, of the structs whose layout the handler relies on."""

BASES = ("XLA_FFI_Extension_Base", "XLA_FFI_InternalExtension")
"""The names that jaxlib has given to the head of an extension (`struct_size, type, next`)."""

# Byte offsets that follow from FIELDS on a 64-bit machine.
FRAME_EXTENSION, FRAME_API, FRAME_CTX, FRAME_STAGE = 8, 16, 24, 32
FRAME_ARGS, FRAME_RETS, FRAME_FUTURE = 40 + 32, 80 + 32, 168
BUFFER_DATA, BUFFER_DIMS = 24, 40
EXTENSION_TYPE, EXTENSION_METADATA = 8, 24
METADATA_VERSION_SIZE, METADATA_MAJOR, METADATA_MINOR = 8, 24, 28
METADATA_TRAITS, METADATA_STATE_TYPE = 32, 40
STAGE_EXECUTE, TYPE_METADATA, ERROR_INTERNAL = 3, 1, 13
API_FIRST_FUNCTION = 48
"""After struct_size, extension_start, api_version (24 bytes) and internal_api."""


@dataclasses.dataclass(frozen=True)
class Abi:
    """What the handler needs to know about this jaxlib."""

    major: int
    minor: int
    schedule_offset: int
    error_offset: int
    destroy_offset: int
    create_offset: int
    available_offset: int


@functools.cache
def read_abi() -> Abi | str:
    """The layout of the installed jaxlib, or why it cannot be used."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        return parse(header.read_text())
    except OSError as error:
        return f"cannot read XLA's FFI header: {error}"


def parse(text: str) -> Abi | str:
    """As `read_abi`, from the text of `c_api.h`."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    for name, expected in FIELDS.items():
        found = _fields(text, name)
        if found != expected:
            return f"XLA's FFI struct {name} has fields {found}, expected {expected}"
    if not any(_fields(text, base) == ["struct_size", "type", "next"] for base in BASES):
        return "the head of XLA's FFI extensions has an unknown layout"
    constants = {
        "XLA_FFI_ExecutionStage_EXECUTE": STAGE_EXECUTE,
        "XLA_FFI_Extension_Metadata": TYPE_METADATA,
        "XLA_FFI_Error_Code_INTERNAL": ERROR_INTERNAL,
    }
    for name, value in constants.items():
        if not re.search(rf"\b{name}\s*=\s*{value}\b", text):
            return f"XLA's FFI constant {name} is not {value}"
    version = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    functions = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((XLA_FFI_\w+)\);", text)
    needed = (
        "XLA_FFI_ThreadPool_Schedule",
        "XLA_FFI_Error_Create",
        "XLA_FFI_Error_Destroy",
        "XLA_FFI_Future_Create",
        "XLA_FFI_Future_SetAvailable",
    )
    if None in version or not all(f in functions for f in needed):
        return "XLA's FFI header names no API version, thread pool, error or future functions"
    major, minor = (int(match.group(1)) for match in version if match)
    if major != 0:
        return f"XLA's FFI has major version {major}, expected 0"
    offsets = [API_FIRST_FUNCTION + 8 * functions.index(f) for f in needed]
    return Abi(major, minor, *offsets)


def _fields(text: str, name: str) -> list[str] | None:
    match = re.search(rf"struct {name}\s*\{{(.*?)\}}", text, flags=re.DOTALL)
    if match is None:
        return None
    return [line.split()[-1].lstrip("*") for line in match.group(1).split(";") if line.strip()]
