import json
import sys

import pytest

from tests.conftest import require, require_installed


def test_what_is_installed_is_imported() -> None:
    assert require("json") is json


def test_what_is_missing_skips_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DETCLOUD_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make setup"):
        require("detcloud_none")


def test_what_is_missing_and_demanded_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCLOUD_REQUIRE", "torch,detcloud_none")
    with pytest.raises(pytest.fail.Exception, match="DETCLOUD_REQUIRE"):
        require("detcloud_none")


def test_what_other_processes_need_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCLOUD_REQUIRE", "this,detcloud_none")
    monkeypatch.delitem(sys.modules, "this", raising=False)
    require_installed("this")
    assert "this" not in sys.modules
    with pytest.raises(pytest.fail.Exception, match="DETCLOUD_REQUIRE"):
        require_installed("detcloud_none")
