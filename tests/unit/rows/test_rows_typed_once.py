"""Only the declarations type partitions and the starts of sort keys."""

import ast
from collections.abc import Iterator

import pytest

from control_plane.rows.actor_rows import ACTOR_PARTITIONS
from control_plane.rows.registry import ROW_TYPES
from tests.unit.house.rules import ROOT, SERVER_PACKAGES

PARTITIONS = {row_type.partition for row_type in ROW_TYPES} - {""}
# Texts with "#" are parts of keys in any place.
MARKED = {text for text in PARTITIONS | set(ACTOR_PARTITIONS) if text.endswith("#")} | {
    row_type.sort for row_type in ROW_TYPES if "#" in row_type.sort
}
# Partitions without "#" are common words, which are keys only as arguments of calls that take keys.
KEY_CALLS = frozenset({"Key", "query", "read_rows", "read_row_page", "row", "write_row"})


def find_typed_keys(text: str) -> Iterator[str]:
    """Yield the line and the text of each literal in a module that is a part of a row's key."""
    tree = ast.parse(text)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings and node.value.startswith(tuple(MARKED)):
                yield f"{node.lineno}: {node.value}"
        elif isinstance(node, ast.Call) and _called_name(node) in KEY_CALLS:
            for argument in node.args:
                if isinstance(argument, ast.Constant) and argument.value in PARTITIONS:
                    yield f"{argument.lineno}: {argument.value}"
        elif isinstance(node, ast.Assign) and _is_constant(node):
            assert isinstance(node.value, ast.Constant)
            if node.value.value in PARTITIONS:
                yield f"{node.lineno}: {node.value.value}"


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_constant(node: ast.Assign) -> bool:
    """Return whether a statement assigns a literal to a single name in capitals."""
    (target, *others) = node.targets
    is_name = isinstance(target, ast.Name) and target.id.isupper() and not others
    return is_name and isinstance(node.value, ast.Constant)


def test_only_declarations_type_keys() -> None:
    typed = [
        f"{path.relative_to(ROOT)}:{place}"
        for folder in SERVER_PACKAGES
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.is_relative_to(ROOT / "control_plane" / "rows")
        for place in find_typed_keys(path.read_text(encoding="utf-8"))
    ]
    assert not typed, "take these from control_plane/rows:\n" + "\n".join(typed)


@pytest.mark.parametrize(
    "text",
    [
        'MAIL = "M#"',
        'def f(pool):\n    return f"leases#{pool}"',
        'AGENTS = "agents"',
        'table.get(Key("cluster", sort))',
        'context.write_row("pins", uuid, None)',
        'x = {"S": [{"prefix": "jobs#"}]}',
        'address.startswith("trial#")',
        'key.sort.startswith("Z#0")',
    ],
)
def test_typed_key_is_found(text: str) -> None:
    assert list(find_typed_keys(text))


@pytest.mark.parametrize(
    "text",
    ['"""leases#POOL"""', 'fields = {"agents": 1}', 'sender = f"audit#{pool}"', "N = MAIL"],
)
def test_other_text_is_not_a_key(text: str) -> None:
    assert not list(find_typed_keys(text))
