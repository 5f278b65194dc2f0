"""FlyDSL kernels to gfx1250 code objects, on any machine, in a child process, kept on disk.

FlyDSL is steered by environment variables and links with a `ld.lld` that it looks for in a ROCm
folder. Both are set up in a child process that lives for one kernel, so that the caller's
environment stays as it is and FlyDSL need not be imported here. Run as a module this file is that
child.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import mxgemm
from mxgemm import settings
from mxgemm.errors import BackendUnavailable
from mxgemm.runtime import disk_cache

ARCH = "gfx1250"
VERSIONS = ((0, 4, 2), (0, 6, 0))
"""FlyDSL versions that the kernels compile with: from the first to below the second."""
LLD_VERSIONS = range(19, 25)
"""Debian's numbered lld packages that link code object v6; lld 18 refuses its ABI version."""
TIMEOUT_S = 600
FORMAT = 1
"""Of the files on disk; part of their name."""
RESULT = "result.json"


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


def installed_version() -> tuple[int, ...] | None:
    """Return FlyDSL's version, None where it is not installed; imports nothing."""
    try:
        text = importlib.metadata.version("flydsl")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def find_linker() -> Path | None:
    """Return the ld.lld to link with: the ROCm folder's of the setting, ROCm's usual one, or
    Debian's; None for none.
    """
    folders = [settings.ROCM_PATH.read(), "/opt/rocm"]
    candidates = [Path(folder) / "llvm/bin/ld.lld" for folder in folders if folder]
    for path in candidates:
        if path.exists():
            return path
    for version in reversed(LLD_VERSIONS):
        found = shutil.which(f"ld.lld-{version}")
        if found:
            return Path(found)
    return None


def compile_kernel(builder: str, argument: object, sources: tuple[Path, ...]) -> CompiledKernel:
    """Return the kernel that `builder` builds from `argument`, from disk where it was compiled
    before.

    Args:
        builder: "module:function"; called in the child with `argument`, it returns the jitted
            launcher, its placeholder arguments, the lanes of a workgroup and its dynamic LDS in
            bytes.
        argument: picklable, with a `repr` that names it wholly.
        sources: files whose content the kernel depends on.

    Raises:
        CompilationFailed: FlyDSL or the linker did not succeed.
    """
    name = _cache_name(builder, argument, sources)
    text = disk_cache.cached(
        "flydsl", name, lambda: _to_bytes(_compile_in_child(builder, argument))
    )
    return _from_bytes(text)


def _cache_name(builder: str, argument: object, sources: tuple[Path, ...]) -> str:
    parts = [builder, repr(argument), str(installed_version()), mxgemm.__version__, str(FORMAT)]
    parts += [source.read_text() for source in (Path(__file__), *sources)]
    return f"{disk_cache.digest(parts)}.json"


def _to_bytes(kernel: CompiledKernel) -> bytes:
    return json.dumps({**asdict(kernel), "code_object": kernel.code_object.hex()}).encode()


def _from_bytes(content: bytes) -> CompiledKernel:
    data = json.loads(content)
    data["code_object"] = bytes.fromhex(data["code_object"])
    data["arguments"] = tuple((offset, size) for offset, size in data["arguments"])
    return CompiledKernel(**data)


def _compile_in_child(builder: str, argument: object) -> CompiledKernel:
    linker = find_linker()
    if linker is None:
        raise CompilationFailed(
            "FlyDSL: needs ld.lld 19 or later, got none; install lld-19 or set MXGEMM_ROCM_PATH"
        )
    with tempfile.TemporaryDirectory(prefix="mxgemm-flydsl-") as folder:
        linked = Path(folder) / "rocm/llvm/bin/ld.lld"
        linked.parent.mkdir(parents=True)
        linked.symlink_to(linker)
        request = {"builder": builder, "argument": argument, "folder": folder}
        child = subprocess.run(  # noqa: S603  our own interpreter and module
            [sys.executable, "-c", _CHILD],
            input=pickle.dumps(sys.path) + pickle.dumps(request),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        result = Path(folder) / RESULT
        if child.returncode != 0 or not result.exists():
            output = (child.stdout + child.stderr).decode(errors="replace")
            raise CompilationFailed(f"FlyDSL on {builder} for {argument!r}: {output[-2000:]}")
        return _from_bytes(result.read_bytes())


_CHILD = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from mxgemm.runtime import flydsl_compile
flydsl_compile.serve(pickle.load(sys.stdin.buffer))
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
    import flydsl.compiler as flyc

    module, _, function = str(request["builder"]).partition(":")
    build = getattr(importlib.import_module(module), function)
    launcher, placeholders, threads, lds_bytes = build(request["argument"])
    compiled = flyc.compile(launcher, *placeholders)
    assembly = next(dump.rglob("*final_isa.s")).read_text()
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
    names = (
        "vgpr_count",
        "sgpr_count",
        "vgpr_spill_count",
        "sgpr_spill_count",
        "private_segment_fixed_size",
    )
    resources = {name: int(_field(text, f".{name}")) for name in names}
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
    assert plain.startswith(b"\x7fELF"), plain[:4]
    return plain
