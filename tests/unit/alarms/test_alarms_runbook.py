"""Each alarm has a page in the runbook, and each page belongs to an alarm."""

from typing import get_args

import pytest

from control_plane.alarms.kinds import CLUSTER_ALARMS
from control_plane.alarms.runbook import FOLDER, runbook_page
from control_plane.config.alarms import AlarmName
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


def test_link_goes_to_the_copy_of_a_team() -> None:
    assert runbook_page("lag") == "docs/runbook/lag.md"
    assert runbook_page("lag", "https://wiki.example.com/r/") == "https://wiki.example.com/r/lag.md"


def test_description_fits_clouds_limits() -> None:
    # CloudWatch accepts descriptions of 1,024 characters, and the setting URLs of 408.
    for alarm in MEANINGS:
        text = describe_alarm(alarm, f"detcloud-{'t' * 20}", f"https://{'u' * 400}")
        assert len(text) <= 1024
