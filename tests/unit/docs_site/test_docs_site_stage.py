"""The generator's input, from a small repository."""

from pathlib import Path

import pytest

from docs_site.stage import example_page, stage

FILES = {
    "docs/README.md": "Start:\n- [code](../examples/net)\n- [a](guide/a.md#b)\n",
    "docs/guide/a.md": "# A\n\n## B\n\n![p](../pictures/p.png)\n",
    "docs/pictures/p.png": "",
    "examples/net/model.py": "x = 1\n",
    "examples/net/config.yaml": "name: net\n",
    "examples/net/weights.bin": "",
    "examples/net/__pycache__/model.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_pages_and_pictures_are_staged_with_links_of_the_site(root: Path) -> None:
    build = root / "build"
    assert stage(build, root=root) == []
    pages = build / "site-pages"
    text = "Start:\n\n- [code](examples/net/index.md)\n- [a](guide/a.md#b)\n"
    assert (pages / "index.md").read_text() == text
    assert (pages / "guide" / "a.md").read_text() == FILES["docs/guide/a.md"]
    assert (pages / "pictures" / "p.png").exists()
    assert (pages / "assets" / "site.css").exists()
    assert "site_url" not in (build / "zensical.toml").read_text()


def test_earlier_pages_are_deleted(root: Path) -> None:
    stage(root / "build", root=root)
    (root / "docs" / "guide" / "a.md").unlink()
    [problem] = stage(root / "build", root=root)
    assert problem.startswith("docs/README.md: the link guide/a.md#b leads to no page of the site")
    assert not (root / "build" / "site-pages" / "guide" / "a.md").exists()


def test_address_of_the_site_is_configured(root: Path) -> None:
    stage(root / "build", "https://docs.example.com/", root)
    configuration = (root / "build" / "zensical.toml").read_text()
    assert '[project]\nsite_url = "https://docs.example.com/"\n' in configuration


def test_page_of_an_example_has_all_texts(root: Path) -> None:
    folder = root / "examples" / "net"
    files = "## config.yaml\n\n```yaml\nname: net\n```\n\n## model.py\n\n```python\nx = 1\n```\n"
    assert example_page(folder) == f"# net\n\n{files}"
    (folder / "README.md").write_text("# A net\n")
    assert example_page(folder) == f"# A net\n\n{files}"
