"""The sources and packages that functions need, from a checkout and from an installation."""

from importlib import metadata
from pathlib import Path

import pytest

from infra import sources
from infra.aws.bundle import EXTRAS


def test_an_installation_wants_what_its_extra_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = sources.extra_packages(*EXTRAS["suggest"])
    assert any(it.startswith("mangum") for it in wanted)
    assert [it for it in wanted if it not in sources.extra_packages("functions")] == ["optuna>=4"]
    lines = [f"{it}; extra == 'functions'" for it in sources.extra_packages("functions")]
    lines += ["optuna>=4; extra == 'optuna'", "pathspec>=0.12", 'torch>=2.4; extra == "torch"']
    monkeypatch.setattr(sources, "REPOSITORY", tmp_path)
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert sources.extra_packages(*EXTRAS["suggest"]) == wanted
