"""What goes into the functions' archive, from a checkout and from an installation."""

import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from infra import bundle


def test_an_installation_wants_what_its_extra_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = bundle.wanted()
    assert any(it.startswith("mangum") for it in wanted)
    lines = [f"{it}; extra == 'functions'" for it in wanted]
    lines += ["pathspec>=0.12", 'torch>=2.4; extra == "torch"']
    monkeypatch.setattr(bundle, "REPOSITORY", tmp_path)
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert bundle.wanted() == wanted


def test_functions_carry_what_they_import_and_nothing_that_none_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What pip and a compiler do is theirs, and takes a while.
    monkeypatch.setattr(bundle, "_install_packages", lambda target, content: None)
    monkeypatch.setattr(bundle, "_compile", lambda target, content: None)
    first = bundle.build(bundle.TARGETS["arm64"], tmp_path / "a")
    names = set(zipfile.ZipFile(first).namelist())
    assert {"lambdas/advance.py", "control_plane/api/app.py", "detcloud/__init__.py"} <= names
    left_out = ("control_plane/simulation/", "detcloud/_server/", "lambdas/simulation/", "infra/")
    assert not [it for it in names if it.startswith(left_out) or "__pycache__" in it]
    second = bundle.build(bundle.TARGETS["arm64"], tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
