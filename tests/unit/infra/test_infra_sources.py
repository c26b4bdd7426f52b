"""The sources and packages that functions need, from a checkout and from an installation."""

from importlib import metadata
from pathlib import Path

import pytest

from infra import sources
from infra.aws.bundle import EXTRAS


def test_installed_package_has_the_same_extras_as_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = sources.extra_packages(*EXTRAS["suggest"])
    assert any(text.startswith("mangum") for text in wanted)
    assert [text for text in wanted if text not in sources.extra_packages("functions")] == [
        "optuna>=4"
    ]
    lines = [
        f"{extra_package}; extra == 'functions'"
        for extra_package in sources.extra_packages("functions")
    ]
    lines += ["optuna>=4; extra == 'optuna'", "pathspec>=0.12", 'torch>=2.4; extra == "torch"']
    monkeypatch.setattr(sources, "REPOSITORY", tmp_path)
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert sources.extra_packages(*EXTRAS["suggest"]) == wanted
