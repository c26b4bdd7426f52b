"""The boot script of instances."""

import base64
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.api.agent_code import agent_code
from control_plane.fleet.records import IntentRow, Market, Offering
from lambdas.boot import user_data
from provisioner.clouds.aws_template import USER_DATA_BYTES_MAX
from provisioner.clouds.provider import Misconfigured

URL, CLUSTER = "https://a1b2c3.execute-api.eu-central-1.amazonaws.com", "detcloud-vision"
OFFERING = Offering("g5/a/spot", "g5.xlarge", "a", Market.SPOT, 1)
REQUEST = IntentRow("intent-1", CLUSTER, "gpus", OFFERING, 1, "t" * 40, 1_000, "{}")


def script(request: IntentRow = REQUEST) -> str:
    return user_data(URL, CLUSTER)(request).decode()


def test_it_says_where_the_cluster_is_and_which_code_it_runs() -> None:
    text = script()
    assert f"url='{URL}'" in text
    assert f"cluster='{CLUSTER}'" in text
    assert "pool='gpus'" in text
    assert f"code_sha256='{agent_code().sha256}'" in text
    assert not re.findall(r"@[A-Z0-9_]+@", text)


def test_it_installs_what_a_machine_image_has_ready() -> None:
    install = Path(__file__).parents[3] / "images/boot/install.sh"
    assert install.read_text() in script()


def test_bash_can_read_it_and_ec2_takes_it() -> None:
    text = script()
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0
    assert len(base64.b64decode(base64.b64encode(text.encode()))) < USER_DATA_BYTES_MAX / 2


def test_the_same_pool_has_the_same_script() -> None:
    other = replace(REQUEST, id="intent-2", token="u" * 40, created_ms=9_000, count=3)
    assert script(other) == script()


@pytest.mark.parametrize("pool", ["a b", "a'; reboot; '", "$(reboot)", "a\nb", "@URL@"])
def test_a_name_that_a_shell_would_read_is_refused(pool: str) -> None:
    with pytest.raises(Misconfigured, match=r"pool .* cannot stand in a boot script"):
        script(replace(REQUEST, pool=pool))


@pytest.mark.parametrize(
    ("section", "mounts"),
    [({}, ""), ({"allowed_mounts": ["/mnt/data", "/dev/fuse"]}, "/mnt/data /dev/fuse")],
)
def test_its_trials_mount_what_their_pool_allows(section: object, mounts: str) -> None:
    text = script(replace(REQUEST, section=json.dumps(section)))
    assert f"mounts='{mounts}'\n" in text
    assert " --allow-mount $mounts --" in text


def test_a_folder_that_a_shell_would_read_is_refused() -> None:
    section = json.dumps({"allowed_mounts": ["/mnt", "/a'; reboot; '"]})
    with pytest.raises(Misconfigured, match=r"allowed_mounts .* cannot stand in a boot script"):
        script(replace(REQUEST, section=section))


def test_a_startup_script_runs_by_itself_whatever_is_in_it() -> None:
    own = "echo 'hello'; exit 3\n@POOL@ $HOME"
    text = script(replace(REQUEST, section=json.dumps({"startup_script": own})))
    encoded = base64.b64encode(own.encode()).decode()
    assert f"echo {encoded} | base64 --decode | bash || true" in text
    assert own not in text
