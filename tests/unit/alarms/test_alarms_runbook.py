"""Each alarm has a page in the runbook, and each page belongs to an alarm."""

import tomllib
from pathlib import Path
from typing import get_args

import pytest

from control_plane.alarms.kinds import CLUSTER_ALARMS
from control_plane.alarms.runbook import runbook_page
from control_plane.config.alarms import AlarmName
from detcloud.shared.runbook import FOLDER, alarm_names, read_page
from infra import sources
from infra.alarm_texts import MEANINGS, describe_alarm
from tests.unit.house.rules import ROOT

PAGES = {path.stem: path.read_text("utf-8") for path in (ROOT / FOLDER).glob("*.md")}
INDEX = PAGES.pop("README")


def test_alarms_and_pages_are_the_same() -> None:
    assert PAGES.keys() == MEANINGS.keys() | CLUSTER_ALARMS.keys()


@pytest.mark.parametrize("alarm", sorted(PAGES))
def test_page_has_meaning_and_how_to_silence(alarm: str) -> None:
    page = PAGES[alarm]
    assert page.startswith(f"# Alarm `{alarm}`\n\n**Meaning.** ")
    assert "## Look" in page
    assert "(README.md#silence-an-alarm)" in page
    assert f"[`{alarm}`]({alarm}.md)" in INDEX


def test_each_alarm_of_the_cluster_can_be_turned_off() -> None:
    assert set(get_args(AlarmName)) == CLUSTER_ALARMS.keys()


def test_link_goes_to_the_copy_of_a_team_or_to_the_page_of_the_cluster() -> None:
    copy, cluster = "https://wiki.example.com/r/", "https://api.example.com/"
    assert runbook_page("lag", copy, cluster) == "https://wiki.example.com/r/lag.md"
    assert runbook_page("lag", "", cluster) == "https://api.example.com/ui/#/alarms/lag"
    assert runbook_page("lag") == "detcloud alarm describe lag"


@pytest.mark.parametrize("alarm", sorted(PAGES))
def test_shown_page_says_how_to_silence_the_alarm(alarm: str) -> None:
    page = read_page(ROOT / FOLDER, alarm)
    assert page is not None
    # The section stands in place of the link, and no link to the index remains.
    assert page.startswith(f"# Alarm `{alarm}`")
    assert "README.md" not in page
    assert page.rstrip().splitlines()[-1] == INDEX.rstrip().splitlines()[-1]


def test_only_alarms_have_shown_pages() -> None:
    folder = ROOT / FOLDER
    assert alarm_names(folder) == sorted(PAGES)
    for name in ("README", "../aws", "", "."):
        assert read_page(folder, name) is None


def test_description_fits_clouds_limits() -> None:
    # CloudWatch accepts descriptions of 1,024 characters, and the setting URLs of 408.
    for alarm in MEANINGS:
        text = describe_alarm(alarm, f"detcloud-{'t' * 20}", f"https://{'u' * 400}")
        assert len(text) <= 1024


def test_runbook_is_packed_with_the_functions_and_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SOURCES", ())
    sources.copy_sources(tmp_path / "function")
    assert alarm_names(tmp_path / "function" / FOLDER) == sorted(PAGES)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    # The server finds the pages beside its packages (control_plane/queries/alarm.py).
    assert included[FOLDER] == f"{included['control_plane'].rpartition('/')[0]}/{FOLDER}"
