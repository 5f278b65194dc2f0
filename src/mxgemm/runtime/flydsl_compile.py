"""FlyDSL kernels to gfx1250 code objects, on any machine, in a child process, kept on disk.

FlyDSL is steered by environment variables and links with a `ld.lld` that it looks for in a ROCm
folder. Both are set up in a child process that lives for one kernel and never longer than its
parent, so that the caller's environment stays as it is and FlyDSL need not be imported here.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import mxgemm
from mxgemm import settings
from mxgemm.errors import BackendUnavailable
from mxgemm.runtime import disk_cache, import_closure, rocm_linker
from mxgemm.runtime.work_folder import work_folder

logger = logging.getLogger("mxgemm")

ARCH = "gfx1250"
VERSIONS = ((0, 4, 2), (0, 6, 0))
"""FlyDSL versions that the kernels compile with: from the first to below the second."""
TIMEOUT_S = 600
FORMAT = 1
"""Of the files on disk; part of their name."""
FOLDER = "flydsl"
"""In the cache."""
RESULT = "result.json"


RESOURCES = (
    "vgpr_count",
    "sgpr_count",
    "vgpr_spill_count",
    "sgpr_spill_count",
    "private_segment_fixed_size",
)
"""What the compiler counts of a kernel, by the names of its metadata."""


class CompilationFailed(BackendUnavailable):
    """FlyDSL or the linker failed; the text is the child's last output."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel as machine code.

    Attributes:
        code_object: ELF, AMDGPU code object version 6.
        assembly: the same as text, for inspection.
        symbol: the kernel's name in it.
        threads: lanes of a workgroup.
        lds_bytes: dynamic LDS to launch with.
        arguments: (offset, size) of each kernel argument in the argument buffer.
        argument_bytes: size of that buffer.
        resources: counts that the compiler states: vgpr_count, sgpr_count, vgpr_spill_count, ...
    """

    code_object: bytes
    assembly: str
    symbol: str
    threads: int
    lds_bytes: int
    arguments: tuple[tuple[int, int], ...]
    argument_bytes: int
    resources: dict[str, int]


def installed_version() -> str | None:
    """Return FlyDSL's version, None where it is not installed; imports nothing."""
    try:
        return importlib.metadata.version("flydsl")
    except importlib.metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """Return the three numbers of a version: (0, 4, 2) of "0.4.2.dev1+local"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def compile_kernel(builder: str, argument: object) -> CompiledKernel:
    """Return the kernel that `builder` builds from `argument`, from disk where it was compiled
    before.

    Args:
        builder: "module:function"; called in the child with `argument`, it returns the jitted
            launcher, its placeholder arguments, the lanes of a workgroup and its dynamic LDS in
            bytes.
        argument: picklable, with a `repr` that names it wholly.

    Raises:
        CompilationFailed: FlyDSL or the linker did not succeed, or not in time.
        NoLinker: there is no linker.
    """
    linker = rocm_linker.find()
    name = cache_name(builder, argument, linker)
    return disk_cache.cached(
        FOLDER, name, lambda: _compile_in_child(builder, argument, linker), _from_bytes
    )


def cache_name(builder: str, argument: object, linker: rocm_linker.Linker) -> str:
    """Return the name of a kernel's file, which changes with all that the kernel depends on: the
    argument, every source file of ours that the builder imports, and the versions of FlyDSL and of
    the linker.
    """
    parts = [builder, repr(argument), str(installed_version()), linker.version]
    parts += [mxgemm.__version__, str(FORMAT)]
    files = import_closure.sources(__name__, builder.partition(":")[0])
    for module in sorted(files):
        parts += [module, hashlib.sha256(files[module]).hexdigest()]
    return f"{disk_cache.digest(parts)}.json"


def _to_bytes(kernel: CompiledKernel) -> bytes:
    return json.dumps({**asdict(kernel), "code_object": kernel.code_object.hex()}).encode()


_FORM = {
    "code_object": str,
    "assembly": str,
    "symbol": str,
    "threads": int,
    "lds_bytes": int,
    "arguments": list,
    "argument_bytes": int,
    "resources": dict,
}
"""Of a kernel's file: what JSON makes of each attribute."""


def _from_bytes(content: bytes) -> CompiledKernel:
    """Return the kernel of which `_to_bytes` made `content`.

    Raises:
        ValueError: it made it of none.
    """
    try:
        data = json.loads(content)
    except RecursionError as error:
        raise ValueError("must hold a kernel, is nested too deeply") from error
    if not isinstance(data, dict) or {name: type(value) for name, value in data.items()} != _FORM:
        raise ValueError(f"must hold {', '.join(_FORM)}, each in its type")
    for pair in data["arguments"]:
        if not isinstance(pair, list) or [type(number) for number in pair] != [int, int]:
            raise ValueError(f"arguments must be pairs of numbers, got {pair!r}")
    if not all(type(number) is int for number in data["resources"].values()):
        raise ValueError(f"resources must be numbers, got {data['resources']}")
    data["code_object"] = disk_cache.elf(bytes.fromhex(data["code_object"]))
    data["arguments"] = tuple((offset, size) for offset, size in data["arguments"])
    return CompiledKernel(**data)


def _compile_in_child(builder: str, argument: object, linker: rocm_linker.Linker) -> bytes:
    """Return the content of a kernel's file."""
    what = f"FlyDSL on {builder} for {argument}"
    function = builder.rpartition(":")[2]
    logger.info("compiling a kernel, %s: 5 to 30 s, the first time only", function)
    start = time.perf_counter()
    try:
        with work_folder(*_work_places()) as folder:
            content = _run_child(builder, argument, linker.path, folder)
    except subprocess.TimeoutExpired as error:
        raise CompilationFailed(
            f"{what}: must end within {TIMEOUT_S} s, did not; is the machine overloaded or short "
            f"of memory?"
        ) from error
    except (OSError, _ChildFailed) as error:
        raise CompilationFailed(f"{what}: {error}") from error
    logger.debug("compiled %s in %.1f s", what, time.perf_counter() - start)
    return content


def _work_places() -> list[Path]:
    """Return where a child may work, the best first."""
    places = []
    with suppress(OSError):  # no folder for temporary files can be written
        places.append(Path(tempfile.gettempdir()))
    with suppress(ValueError):
        places.append(settings.cache_dir() / FOLDER)
    return places


class _ChildFailed(Exception):
    """How the child ended and what it said last."""


def _run_child(builder: str, argument: object, linker: Path, folder: Path) -> bytes:
    """Return what the child leaves in `folder`."""
    linked = folder / "rocm" / rocm_linker.IN_ROCM
    linked.parent.mkdir(parents=True)
    linked.symlink_to(linker)
    request = {"builder": builder, "argument": argument, "folder": folder}
    # In its own folder: the caller's may be gone, or hold modules that are not meant.
    child = subprocess.run(  # noqa: S603  our own interpreter and module
        [sys.executable, "-c", _CHILD, str(os.getpid())],
        input=pickle.dumps(_import_path()) + pickle.dumps(request),
        cwd=folder,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    result = folder / RESULT
    if child.returncode == 0 and result.exists():
        return result.read_bytes()
    output = (child.stdout + child.stderr).decode(errors="replace")[-2000:]
    raise _ChildFailed(f"the compiler ended with status {child.returncode}: {output}")


def _import_path() -> list[str]:
    """Return where this process imports from, for one that runs in another folder."""
    with suppress(FileNotFoundError):
        here = Path.cwd()
        return [str(here / entry) for entry in sys.path]
    return [entry for entry in sys.path if Path(entry).is_absolute()]


_CHILD = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
import pickle
sys.path[:] = pickle.load(sys.stdin.buffer)
from mxgemm.runtime import flydsl_compile
flydsl_compile.serve(pickle.load(sys.stdin.buffer))
"""
"""The child; its argument is its parent's process id. It first sees to it that it ends with its
parent, however that is killed, or has ended already: the imports may take seconds.
"""


def serve(request: dict[str, object]) -> None:
    """Compile one kernel in this process, which then must end: it sets FlyDSL's variables."""
    folder = Path(str(request["folder"]))
    dump = folder / "dump"
    settings.steer_this_process(
        "FLYDSL_",
        ARCH=ARCH,
        ROCM_PATH=str(folder / "rocm"),
        FLYDSL_RUNTIME_ENABLE_CACHE="0",
        FLYDSL_DEBUG_DUMP_ASM="1",
        FLYDSL_DUMP_DIR=str(dump),
    )
    module, _, function = str(request["builder"]).partition(":")
    build = getattr(importlib.import_module(module), function)
    launcher, placeholders, threads, lds_bytes = build(request["argument"])

    import flydsl.compiler as flyc

    compiled = flyc.compile(launcher, *placeholders)
    assembly = next(dump.rglob("*final_isa.s")).read_text("utf-8")
    arguments, argument_bytes, symbol, resources = _metadata(assembly)
    kernel = CompiledKernel(
        code_object=_code_object(compiled._keepalive._ir_text),
        assembly=assembly,
        symbol=symbol,
        threads=threads,
        lds_bytes=lds_bytes,
        arguments=arguments,
        argument_bytes=argument_bytes,
        resources=resources,
    )
    (folder / RESULT).write_bytes(_to_bytes(kernel))


def _metadata(
    assembly: str,
) -> tuple[tuple[tuple[int, int], ...], int, str, dict[str, int]]:
    """Return arguments, their size, the symbol and the resource counts from a listing's
    .amdgpu_metadata.
    """
    text = assembly.split(".amdgpu_metadata", 1)[1].split(".end_amdgpu_metadata", 1)[0]
    explicit = [
        entry
        for entry in re.split(r"\n\s+- ", text)
        if re.search(r"\.value_kind:\s+(by_value|global_buffer)", entry)
    ]
    arguments = tuple(
        (int(_field(entry, ".offset")), int(_field(entry, ".size"))) for entry in explicit
    )
    resources = {name: int(_field(text, f".{name}")) for name in RESOURCES}
    return arguments, int(_field(text, ".kernarg_segment_size")), _field(text, ".name"), resources


def _field(text: str, name: str) -> str:
    found = re.search(rf"(?:^|\s){re.escape(name)}:\s+(\S+)", text)
    assert found is not None, name
    return found.group(1)


def _code_object(module: str) -> bytes:
    """Return the ELF bytes from the `gpu.binary` of lowered MLIR text, undoing MLIR's string
    escapes.
    """
    start = module.index('bin = "') + len('bin = "')
    escaped = re.compile(r'(?:[^"\\]|\\.)*').match(module, start)
    assert escaped is not None
    plain = re.sub(
        rb"\\([0-9A-Fa-f]{2}|.)",
        lambda m: bytes([int(m[1], 16)]) if len(m[1]) == 2 else m[1],
        escaped[0].encode(),
        flags=re.DOTALL,
    )
    return disk_cache.elf(plain)
