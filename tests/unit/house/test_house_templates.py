"""The templates of tests/README.md fit the tree: folders, imports and fixtures exist."""

import ast
import re
from importlib import import_module

import pytest

from tests.conftest import require_installed
from tests.unit.house.rules import ROOT

README = ROOT / "tests" / "README.md"
LEVELS = {"unit", "conformance", "integration", "end_to_end", "simulation", "hostile"}
TEMPLATES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", README.read_text(), re.DOTALL))
# Fixtures of pytest, and values of parametrize in the templates.
GIVEN = {"self", "tmp_path", "name", "table", "reopen"}


def test_levels_of_tests_have_templates() -> None:
    assert {path.split("/")[1] for path in TEMPLATES} == LEVELS
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py"))}
    missing = [name for name in sorted(folders) if f"`{name}`" not in README.read_text()]
    assert not missing, "tests/README.md lacks these folders"


@pytest.mark.parametrize("path", TEMPLATES)
def test_imports_of_a_template_exist(path: str) -> None:
    if path.startswith("tests/conformance"):
        require_installed("boto3")
    for node in ast.walk(ast.parse(TEMPLATES[path])):
        if isinstance(node, ast.ImportFrom):
            module = import_module(node.module or "")
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{node.module} lacks these names"


@pytest.mark.parametrize("path", TEMPLATES)
def test_fixtures_of_a_template_exist(path: str) -> None:
    conftest = (ROOT / path).parent / "conftest.py"
    fixtures = set(
        re.findall(r"^def (\w+)", conftest.read_text(), re.MULTILINE) if conftest.exists() else ()
    )
    for node in ast.walk(ast.parse(TEMPLATES[path])):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert {argument.arg for argument in node.args.args} <= fixtures | GIVEN
