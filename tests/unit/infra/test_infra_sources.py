"""The sources and packages that functions need, from a checkout and from an installation."""

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
    requirements = "".join(f"Requires-Dist: {line}\n" for line in lines)
    installed = tmp_path / "detcloud-9.9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Name: detcloud\nVersion: 9.9\n{requirements}")
    monkeypatch.syspath_prepend(tmp_path)
    assert sources.extra_packages(*EXTRAS["suggest"], repository=tmp_path) == wanted
