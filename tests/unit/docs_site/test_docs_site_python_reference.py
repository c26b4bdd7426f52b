"""The generated reference docs/python, and the generator on a small package."""

import json
import subprocess
import sys

import pytest

from docs_site.sources import REPOSITORY
from tests.conftest import require
from tests.patience import PROCESS_SECONDS_MAX

require("griffe")

from docs_site.python_reference.collection import Collector  # noqa: E402
from docs_site.python_reference.entries import Entry, Page  # noqa: E402
from docs_site.python_reference.examples_reader import Examples, add_cells  # noqa: E402
from docs_site.python_reference.gaps import find_gaps  # noqa: E402
from docs_site.python_reference.markdown import render_page  # noqa: E402
from docs_site.python_reference.source import SourceProblem, Sources  # noqa: E402
from docs_site.python_reference.subjects import Subject  # noqa: E402

DOCUMENTS = REPOSITORY / "docs" / "python"
RENDER = """
import json, sys
from docs_site.python_reference.pages import render_pages
json.dump([render_pages(), sorted(sys.modules)], sys.stdout)
"""
SOURCE = '''
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

OnProgress = Callable[[int, int], None]


class Color(Enum):
    """The color."""

    RED = "red"
    """Like fire."""


@dataclass
class Size:
    """The size."""

    width: int = 1


class Shop:
    """A shop."""

    def __init__(self, city: str = 'Rome') -> None:
        """Open the shop.

        Args:
            city: the city.
        """

    def buy(self, count: int, *names: str, on_progress: OnProgress | None = None) -> list[Size]:
        """Buy things. Return them.

        Args:
            count: the number,
                at least 1.
            names: the names.
            on_progress: called.

        Raises:
            ValueError: the count is 0.
        """

    purchase = buy

    @property
    def color(self) -> Color:
        """The color | of the shop."""

    def _hide(self) -> None: ...


class BigShop(Shop):
    """A big shop."""

    @contextmanager
    def visit(self) -> Iterator[Shop]:
        """Visit."""
'''


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "tiny").mkdir()
    (folder / "tiny" / "__init__.py").write_text(SOURCE)
    return Sources(folder, "tiny")


def entry(sources: Sources, name: str, *, is_created: bool = False) -> Entry:
    collector = Collector(sources, frozenset({"tiny.Shop"}), "tiny")
    return collector.entry(Subject(f"tiny.{name}", name, is_created), {name: ["Example()"]})


def page_text(found: Entry) -> str:
    page = Page("tiny.md", "tiny", "Introduction.", [found])
    return render_page(page, {"tiny.Shop": "shops.md#shop", "tiny.Size": "tiny.md#size"})


def test_python_reference_is_up_to_date_and_needs_no_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RENDER],
        cwd=REPOSITORY,
        env={"PYTHONPATH": ":".join([".", "harness", *sys.path])},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    pages, modules = json.loads(done.stdout)
    stored = {path.name: path.read_text(encoding="utf-8") for path in DOCUMENTS.glob("*.md")}
    assert stored == pages, "run `make references`"
    assert not {"torch", "keras", "transformers", "lightning", "deepspeed"} & set(modules)


def test_class_has_constructor_fields_and_methods(sources: Sources) -> None:
    shop = entry(sources, "Shop", is_created=True)
    assert shop.signature == 'class tiny.Shop(city: str = "Rome")'
    assert [(p.name, p.text) for p in shop.parameters] == [("city", "the city.")]
    assert shop.text == "A shop.\n\nOpen the shop."
    assert [(f.name, f.type) for f in shop.fields] == [("color", "Color")]
    assert [member.title for member in shop.members] == ["Shop.buy", "Shop.purchase"]


def test_method_has_parameters_result_and_errors(sources: Sources) -> None:
    buy = entry(sources, "Shop").members[0]
    assert buy.signature == (
        "Shop.buy(\n"
        "    count: int,\n"
        "    *names: str,\n"
        "    on_progress: Callable[[int, int], None] | None = None,\n"
        ") -> list[Size]"
    )
    assert buy.returns is not None
    assert buy.returns.classes == ("tiny.Size",)
    assert [(error.name, error.text) for error in buy.errors] == [("ValueError", "the count is 0.")]


def test_context_manager_is_no_iterator(sources: Sources) -> None:
    big = entry(sources, "BigShop")
    assert big.bases == ["tiny.Shop"]
    assert [member.signature for member in big.members] == [
        "BigShop.visit() -> ContextManager[Shop]"
    ]


def test_members_of_enums_and_fields_of_dataclasses_are_fields(sources: Sources) -> None:
    assert [(f.name, f.text) for f in entry(sources, "Color").fields] == [("RED", "Like fire.")]
    size = entry(sources, "Size", is_created=True)
    assert size.signature == "class tiny.Size(width: int = 1)"
    assert [(f.name, f.type) for f in size.fields] == [("width", "int")]


def test_page_has_links_lists_and_escaped_cells(sources: Sources) -> None:
    text = page_text(entry(sources, "Shop"))
    assert "| [`Shop`](#shop) | A shop. |" in text
    assert "- `count`: the number,\n  at least 1.\n- `names`: the names." in text
    assert "**Returns** [`list[Size]`](#size)" in text
    assert "| `color` | `Color` | The color \\| of the shop. |" in text
    assert "**Example**\n\n```python\nExample()\n```" in text
    base = page_text(entry(sources, "BigShop"))
    assert "Subclass of [`Shop`](shops.md#shop), with all of its methods and fields." in base


def test_unknown_name_is_a_problem(sources: Sources) -> None:
    with pytest.raises(SourceProblem, match=r"tiny\.Nothing: no such name"):
        sources.find("tiny.Nothing")


def test_gaps_name_missing_examples_and_parameters(sources: Sources) -> None:
    shop = entry(sources, "Shop")
    assert list(find_gaps(shop, has_methods=False)) == []
    assert list(find_gaps(shop, has_methods=True)) == [
        "Shop.buy has no example: add a cell to docs/python/examples",
        "Shop.purchase has no example: add a cell to docs/python/examples",
    ]
    shop.examples = ["shop.buy(1)", "shop.purchase(1)"]
    buy = shop.members[0]
    buy.parameters = buy.parameters[:1] + [
        type(parameter)(parameter.name, parameter.type, "") for parameter in buy.parameters[1:]
    ]
    assert list(find_gaps(shop, has_methods=True)) == ["Args of Shop.buy lack names, on_progress"]


def test_cells_of_a_script_belong_to_names() -> None:
    script = (
        '"""Doc."""\n\n# %% setup\nimport a\n\n# %%\nhide()\n\n# %% A, B.c\n# %% D\nx = 1\n\n\ny\n'
    )
    examples = Examples()
    add_cells(script, examples)
    assert examples.setup == "import a"
    assert examples.cells == {name: ["x = 1\n\n\ny"] for name in ("A", "B.c", "D")}


def test_every_script_of_examples_belongs_to_a_page() -> None:
    from docs_site.python_reference.subjects import PAGES

    scripts = {path.name for path in (DOCUMENTS / "examples").glob("*.py")}
    assert scripts == {script for page in PAGES for script in page.scripts}
