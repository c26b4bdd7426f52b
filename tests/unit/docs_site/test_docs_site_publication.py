"""Versions of a published site."""

import json
from pathlib import Path

import pytest

from docs_site.publication import PublicationRefused, publish, read_versions


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def write_site(site: Path, text: str) -> Path:
    (site / "index.html").write_text(text)
    return site


def test_newest_release_is_the_latest(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    for version in ("0.9.0", "0.10.0", "dev", "0.2.0"):
        publish(write_site(site, version), folder, version)
    assert json.loads((folder / "versions.json").read_text()) == [
        {"version": "0.10.0", "title": "0.10.0", "aliases": ["latest"]},
        {"version": "0.9.0", "title": "0.9.0", "aliases": []},
        {"version": "0.2.0", "title": "0.2.0", "aliases": []},
        {"version": "dev", "title": "dev", "aliases": []},
    ]
    assert (folder / "latest" / "index.html").read_text() == "0.10.0"
    assert "latest/index.html" in (folder / "index.html").read_text()
    assert sorted(path.name for path in folder.iterdir()) == [
        *("0.10.0", "0.2.0", "0.9.0", "dev", "index.html", "latest", "versions.json"),
    ]


def test_version_is_replaced_as_a_whole(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    (write_site(site, "first") / "old.html").write_text("")
    publish(site, folder, "1.0")
    (write_site(site, "second") / "old.html").unlink()
    publish(site, folder, "1.0")
    for name in ("1.0", "latest"):
        assert [path.name for path in (folder / name).iterdir()] == ["index.html"]
        assert (folder / name / "index.html").read_text() == "second"
    assert [known["version"] for known in read_versions(folder)] == ["1.0"]


@pytest.mark.parametrize("version", ["v1.0", "../1.0", "latest", "", "1..0"])
def test_version_without_a_number_is_refused(site: Path, tmp_path: Path, version: str) -> None:
    with pytest.raises(PublicationRefused, match=r"is neither a number like 0\.2\.0 nor dev"):
        publish(write_site(site, ""), tmp_path / "published", version)
    assert not (tmp_path / "published").exists()


def test_missing_site_is_refused(site: Path, tmp_path: Path) -> None:
    with pytest.raises(PublicationRefused, match="build the site first, with make docs"):
        publish(site, tmp_path / "published", "1.0")


@pytest.mark.parametrize("text", ["{", "[1]", '[{"version": "1"}]', '{"version": "1"}'])
def test_damaged_list_of_versions_is_refused(site: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "versions.json").write_text(text)
    with pytest.raises(PublicationRefused, match="is not a list of versions"):
        publish(write_site(site, ""), tmp_path, "1.0")
