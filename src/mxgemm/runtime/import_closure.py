"""Which of our source files a module depends on, read from its imports: for names of things that
are built from code.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path


def sources(*modules: str) -> dict[str, bytes]:
    """Return the content of the source files of `modules` and of all that they import, directly or
    not, by module name: those of their own packages and of mxgemm, nothing foreign.

    Imports inside functions count; those for type checkers alone do not, nor does a package that is
    only on the way to a module. Nothing is executed but such packages.
    """
    ours = {"mxgemm", *(module.partition(".")[0] for module in modules)}
    found: dict[str, bytes] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] not in ours:
            continue
        spec = _spec(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        found[name] = Path(spec.origin).read_bytes()
        is_package = spec.submodule_search_locations is not None
        waiting += _imported(found[name], name if is_package else name.rpartition(".")[0])
    return found


def _spec(name: str) -> ModuleSpec | None:
    """Return where a module is, None if `name` is none: an object in a module, or nothing."""
    parent = name.rpartition(".")[0]
    if parent:
        above = _spec(parent)
        if above is None or above.submodule_search_locations is None:
            return None
    return importlib.util.find_spec(name) if name else None


@functools.lru_cache(maxsize=512)
def _imported(source: bytes, package: str) -> tuple[str, ...]:
    """Return what a file in `package` imports: modules, and objects of modules."""
    found = []
    for node in _executed(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            module = importlib.util.resolve_name(relative, package)
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return tuple(found)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below `node`, but not what is there for type checkers."""
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        children = iter(node.orelse)
    for child in children:
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from _executed(child)
