"""Search for code that needs a newer Python than the oldest of machine images, and for old Pythons.

The rule reads syntax and names. It misses a new argument or method whose name an old one shares.
"""

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.emulators.server import missing
from tests.patience import PROCESS_SECONDS_MAX

OLDEST = (3, 8)
PROJECT_MINOR_MIN = 11
# Names of the standard library and builtins that are newer than Python 3.8. `zip(strict=)` is a
# named argument, `functools.cache` a name of a module.
NEWER = {
    "Annotated", "BaseExceptionGroup", "BooleanOptionalAction", "Concatenate", "EncodingWarning",
    "ExceptionGroup", "HTTPMethod", "KW_ONLY", "LiteralString", "Never", "NotRequired", "ParamSpec",
    "ReprEnum", "Required", "Self", "StrEnum", "TaskGroup", "TypeAlias", "TypeGuard",
    "TypeVarTuple", "UTC", "Unpack", "aclosing", "add_note", "aiter", "anext", "assert_never",
    "assert_type", "batched", "bit_count", "chdir", "dataclass(kw_only=)",
    "dataclass(slots=)", "dataclass(weakref_slot=)", "file_digest", "functools.cache", "graphlib",
    "hardlink_to", "is_relative_to", "math.lcm", "override", "pairwise", "randbytes",
    "removeprefix", "removesuffix", "to_thread", "tomllib", "waitstatus_to_exitcode", "with_stem",
    "zip(strict=)", "zoneinfo",
}  # fmt: skip
# Types that are not subscriptable in Python 3.8. A union (`X | Y`) of types is newer as well.
PLAIN_TYPES = {
    "bool", "bytes", "dict", "float", "frozenset", "int", "list", "object", "set", "str", "tuple",
    "type",
}  # fmt: skip
INLINE = re.compile(r"python3 - .*<<'(?P<end>[A-Z]+)'\n(?P<code>.*?)^(?P=end)$", re.M | re.S)


def newer_names(source: str) -> set[str]:
    """Return the names in a module that Python 3.8 lacks. Raise SyntaxError for newer syntax.

    Types that Python 3.8 cannot compute are returned as source, for example `list[int]` and
    `str | None`. Python 3.8 ignores annotations below `from __future__ import annotations`.
    """
    tree = ast.parse(source, feature_version=OLDEST)
    generics, names_used, types = set(PLAIN_TYPES), set(), set()
    for node in _runtime_nodes(tree):
        names_used |= set(_names(node))
        if isinstance(node, ast.ImportFrom) and node.module == "collections.abc":
            generics |= {alias.asname or alias.name for alias in node.names}
    for node in _runtime_nodes(tree):
        if _is_generic(node, generics) or _is_union(node, generics):
            types.add(ast.unparse(node))
    return names_used & NEWER | types


def inline_programs(script: str) -> list[str]:
    """Return the programs of Python that a shell script contains as here-documents."""
    return [match["code"] for match in INLINE.finditer(script)]


def require_old_python() -> Path:
    """Return the oldest working Python from 3.8 on that is older than the project's Python.

    The Pythons on the PATH and of pyenv count. Skip the test if the machine has none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for minor in range(OLDEST[1], PROJECT_MINOR_MIN):
        paths = sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python"))
        if on_path := shutil.which(f"python3.{minor}"):
            paths.insert(0, Path(on_path))
        for path in paths:
            if _prints_version(path, minor):
                return path
    return missing("python3.8", f"no Python from 3.8 to 3.{PROJECT_MINOR_MIN - 1} is installed")


def _runtime_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that Python evaluates at run time, without annotations and their imports."""
    is_lazy = any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
    )
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes.extend(node.orelse)
            continue
        for name, value in ast.iter_fields(node):
            if not (is_lazy and name in ("annotation", "returns")):
                nodes.extend(part for part in _parts(value) if isinstance(part, ast.AST))


def _parts(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names in a node, also as MODULE.NAME and FUNCTION(ARGUMENT=)."""
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Attribute(value=value, attr=name):
            yield name
            yield f"{ast.unparse(value)}.{name}"
        case ast.ImportFrom(module=module, names=names):
            yield module or ""
            for alias in names:
                yield from (alias.name, f"{module}.{alias.name}")
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), keywords=keywords):
            yield from (f"{name}({keyword.arg}=)" for keyword in keywords)


def _is_generic(node: ast.AST, generics: set[str]) -> bool:
    """Return whether a node subscripts a type that Python 3.8 cannot subscript."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in generics
    )


def _is_union(node: ast.AST, generics: set[str]) -> bool:
    """Return whether a node is a union of types, or of dicts that the source shows as dicts."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)):
        return False
    return any(
        (isinstance(side, ast.Name) and side.id in generics)
        or (isinstance(side, ast.Constant) and side.value is None)
        or isinstance(side, ast.Dict)
        or _is_generic(side, generics)
        for side in (node.left, node.right)
    )


def _prints_version(path: Path, minor: int) -> bool:
    """Return whether the program is a working Python 3.`minor`. A shim of pyenv may be broken."""
    done = subprocess.run(
        [path, "-c", "import ssl, sys; print(*sys.version_info[:2])"],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    return done.stdout.split() == ["3", str(minor)]
