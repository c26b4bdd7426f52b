"""No import circles in the product."""

import pytest

from tests.unit.house.import_circles import (
    find_circles,
    page_imports,
    product_imports,
    python_imports,
    render_circle,
)
from tests.unit.house.rules import Source

A, B, C = (f"control_plane/{name}.py" for name in "abc")
VIEW, PART = "web/src/views/view.tsx", "web/src/views/part/part.ts"

# A file of each accepted circle, with the reason. No circle is needed so far.
ACCEPTED: dict[str, str] = {}


def test_product_has_no_import_circle() -> None:
    imports = product_imports()
    circles = [c for c in find_circles(imports) if not ACCEPTED.keys() & {*c}]
    assert not circles, "\n\n".join(render_circle(circle, imports) for circle in circles)


def test_accepted_circles_still_exist() -> None:
    found = {path for circle in find_circles(product_imports()) for path in circle}
    assert ACCEPTED.keys() <= found


@pytest.mark.parametrize(
    "text",
    [
        "import control_plane.a",
        "from control_plane import a",
        "from control_plane.a import name",
        "from . import a",
        "from .a import name",
        "def function():\n    from control_plane.a import name",
        "if TYPE_CHECKING:\n    from control_plane.a import Name",
    ],
)
def test_all_forms_of_python_imports_count(text: str) -> None:
    files = [Source(A, "from control_plane.b import name"), Source(B, text)]
    assert find_circles(python_imports(files)) == [(A, B)]


def test_package_means_the_init_file() -> None:
    package = "harness/detcloud/x/__init__.py"
    part = "harness/detcloud/x/part.py"
    files = [Source(package, "from .part import Part"), Source(part, "from detcloud.x import Y")]
    assert find_circles(python_imports(files)) == [(package, part)]


def test_import_of_a_sibling_is_no_import_of_the_package() -> None:
    package = "harness/detcloud/x/__init__.py"
    part = "harness/detcloud/x/part.py"
    other = "harness/detcloud/x/other.py"
    files = [
        Source(package, "from detcloud.x.part import Part"),
        Source(part, "from detcloud.x.other import Other"),
        Source(other, "import os"),
    ]
    assert find_circles(python_imports(files)) == []


def test_long_circle_is_found_and_files_outside_are_not_named() -> None:
    files = [
        Source(A, "import control_plane.b"),
        Source(B, "import control_plane.c"),
        Source(C, "import control_plane.a, control_plane.end"),
        Source("control_plane/start.py", "import control_plane.a"),
        Source("control_plane/end.py", "import os"),
    ]
    assert find_circles(python_imports(files)) == [(A, B, C)]


def test_circles_joined_by_an_import_are_separate() -> None:
    imports = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}
    found = find_circles({path: frozenset(names) for path, names in imports.items()})
    assert found == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    "text",
    [
        "import { view } from '../view'",
        'import type { View } from "../view"',
        "export { view } from '../view'",
        "import {\n  view,\n} from '../view'",
        "const later = () => import('../view')",
    ],
)
def test_all_forms_of_page_imports_count(text: str) -> None:
    texts = {VIEW: "import { part } from './part/part'\nimport './view.css'", PART: text}
    assert find_circles(page_imports(texts)) == [(PART, VIEW)]


def test_imports_of_packages_and_styles_do_not_count() -> None:
    texts = {VIEW: "import { h } from 'preact'\nimport './view.css'"}
    assert page_imports(texts) == {VIEW: frozenset()}


def test_report_names_the_imports_within_the_circle() -> None:
    imports = {A: frozenset({B, C}), B: frozenset({A}), C: frozenset[str]()}
    assert render_circle((A, B), imports) == f"{A} imports {B}\n{B} imports {A}"
