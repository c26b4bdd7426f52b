"""The boot script of instances."""

import base64
import gzip
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.agents.agent_code import agent_code
from control_plane.fleet.records import IntentRow, Market, Offering
from lambdas.aws.boot import user_data
from provisioner.clouds.aws.launch_request import USER_DATA_BYTES_MAX
from provisioner.clouds.provider import ConfigurationError
from tests.emulators.stub_machine import FAIL_BOOT

URL, CLUSTER = "https://a1b2c3.execute-api.eu-central-1.amazonaws.com", "detcloud-vision"
PLACE = "https://detcloud-vision-objects-1.s3.eu-central-1.amazonaws.com/agent-code"
OFFERING = Offering("g5/a/spot", "g5.xlarge", "a", Market.SPOT, 1)
REQUEST = IntentRow("intent-1", CLUSTER, "gpus", OFFERING, 1, "t" * 40, 1_000, "{}")


def script(request: IntentRow = REQUEST) -> str:
    return gzip.decompress(user_data(URL, CLUSTER, PLACE)(request)).decode()


def test_script_has_the_address_and_the_digest_of_the_agents_code() -> None:
    text = script()
    assert f"url='{URL}'" in text
    assert f"cluster='{CLUSTER}'" in text
    assert "pool='gpus'" in text
    assert f"code_sha256='{agent_code().sha256}'" in text
    assert not re.findall(r"@[A-Z0-9_]+@", text)


def test_script_contains_the_installation_of_the_machine_image() -> None:
    install = Path(__file__).parents[3] / "images/boot/install.sh"
    lines = [line for line in install.read_text().splitlines() if not re.match(r" *#", line)]
    assert "\n".join(lines) in script()


def test_script_is_valid_bash() -> None:
    assert subprocess.run(["bash", "-n"], input=script().encode(), check=False).returncode == 0


def noise(number: int, length: int) -> str:
    """Return random hexadecimal digits, which compress to half of the length at best."""
    return hashlib.shake_256(str(number).encode()).hexdigest(length // 2)


@pytest.mark.parametrize("place", [PLACE, ""])
def test_script_of_the_largest_pool_fits_into_user_data(place: str) -> None:
    # Eight file systems are a pool's maximum. Linux allows paths of 4,096 characters, but real
    # paths are shorter.
    systems = [
        {
            "type": "fsx_lustre",
            "id": f"fs-{noise(number, 16)}",
            "folder": f"/mnt/{noise(number, 160)}",
            "mount_name": noise(number, 8),
        }
        for number in range(8)
    ]
    mounts = [f"/mnt/{noise(100 + number, 60)}" for number in range(16)]
    section = {
        "file_systems": systems,
        "allowed_mounts": mounts,
        # The longest names that CloudWatch allows.
        "log_group": noise(200, 512),
        "log_stream": noise(201, 512),
        "startup_script": noise(202, 2_000),
    }
    made = user_data(URL, CLUSTER, place, session_manager=True)
    largest = made(replace(REQUEST, pool=noise(203, 64), section=json.dumps(section)))
    usual = made(replace(REQUEST, section=json.dumps({"file_systems": systems[:1]})))
    # At least 6 KiB are left for the pool's own script and settings.
    assert len(usual) <= 10 * 1024
    assert len(largest) <= 14.5 * 1024 < USER_DATA_BYTES_MAX


def test_script_depends_only_on_the_pool() -> None:
    other = replace(REQUEST, id="intent-2", token="u" * 40, created_ms=9_000, count=3)
    assert script(other) == script()


@pytest.mark.parametrize("pool", ["a b", "a'; reboot; '", "$(reboot)", "a\nb", "@URL@"])
def test_refuses_pool_names_with_shell_syntax(pool: str) -> None:
    with pytest.raises(ConfigurationError, match=r"pool .* cannot be used in a boot script"):
        script(replace(REQUEST, pool=pool))


@pytest.mark.parametrize(
    ("section", "mounts"),
    [({}, ""), ({"allowed_mounts": ["/mnt/data", "/dev/fuse"]}, "/mnt/data /dev/fuse")],
)
def test_agent_allows_the_mounts_of_the_pool(section: object, mounts: str) -> None:
    text = script(replace(REQUEST, section=json.dumps(section)))
    assert f"mounts='{mounts}'\n" in text
    assert " --allow-mount $mounts --" in text


@pytest.mark.parametrize(
    ("section", "count"),
    [({}, 0), ({"cpu_slots_allowed": False}, 0), ({"cpu_slots_allowed": True}, 1)],
)
def test_machine_without_gpus_has_the_pools_cpu_slots(section: object, count: int) -> None:
    text = script(replace(REQUEST, section=json.dumps(section)))
    assert f"cpu_slots='{count}'\n" in text
    assert " --cpu-slots $cpu_slots --" in text


@pytest.mark.parametrize("fails", ["useradd", "curl", "chown"])
def test_failed_boot_starts_the_watchdog_and_powers_off(fails: str, tmp_path: Path) -> None:
    commands = commands_of_boot(tmp_path, fails)
    assert commands[:2] == [
        "systemctl daemon-reload",
        "systemctl enable --now detcloud-watchdog.service",
    ]
    assert commands[-2].split()[0] == fails
    assert commands[-1] == "systemctl poweroff"
    unit = tmp_path / "etc/systemd/system/detcloud-watchdog.service"
    assert "systemctl poweroff" in unit.read_text()
    log = (tmp_path / "var/log/detcloud-boot.log").read_text()
    # In a command substitution the assignment is the failed command.
    command = r'token="\$\(curl' if fails == "curl" else fails
    assert re.search(rf"detcloud: the boot failed: status 1 in line \d+: {command} ", log)


def test_failed_boot_is_reported_if_the_agents_code_exists(tmp_path: Path) -> None:
    folder = tmp_path / "opt/detcloud/detcloud"
    folder.mkdir(parents=True)
    commands = commands_of_boot(tmp_path, "useradd")
    command = "env PYTHONSAFEPATH=1 PYTHONPATH={} timeout 120 python3 -m detcloud.agent.boot_report"
    assert commands[-2] == (
        command.format(tmp_path / "opt/detcloud")
        + f" --cloud aws --url {URL} --cluster {CLUSTER} --pool gpus"
    )
    assert commands[-1] == "systemctl poweroff"


def test_agent_owns_the_watchdogs_file(tmp_path: Path) -> None:
    commands = commands_of_boot(tmp_path, "curl")
    user = next(place for place, line in enumerate(commands) if line.startswith("useradd "))
    assert commands.index(f"chown -R detcloud {tmp_path}/run/detcloud") > user
    assert (tmp_path / "run/detcloud/alive").is_file()


def commands_of_boot(root: Path, fails: str) -> list[str]:
    """Run the script with `root` as its disk and return its commands until the power-off.

    The command `fails` fails.
    """
    programs = root / "bin"
    programs.mkdir()
    for name in ("chown", "curl", "env", "id", "systemctl", "useradd"):
        code = int(name in ("id", fails))
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {root}/said\nexit {code}\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "DETCLOUD_ROOT": str(root)}
    done = subprocess.run(["bash"], input=script().encode(), env=environment, check=False)
    assert done.returncode == 1
    commands = (root / "said").read_text().splitlines()
    return [line for line in commands if not line.startswith("id ")]


def test_refuses_mounts_with_shell_syntax() -> None:
    section = json.dumps({"allowed_mounts": ["/mnt", "/a'; reboot; '"]})
    with pytest.raises(
        ConfigurationError, match=r"allowed_mounts .* cannot be used in a boot script"
    ):
        script(replace(REQUEST, section=section))


def test_startup_script_runs_in_a_separate_shell() -> None:
    own = "echo 'hello'; exit 3\n@POOL@ $HOME"
    text = script(replace(REQUEST, section=json.dumps({"startup_script": own})))
    encoded = base64.b64encode(own.encode()).decode()
    assert f"echo {encoded} | base64 --decode | bash > " in text
    assert own not in text


def test_only_a_pool_with_a_log_group_sends_the_journal() -> None:
    section = json.dumps({"log_group": "/company/agents", "log_stream": "all"})
    text = script(replace(REQUEST, section=section))
    assert "log_group='/company/agents'" in text
    assert "log_stream='all'" in text
    assert "log_group=''" in script()
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0


def test_root_reaches_the_metadata_only_for_systems_manager(tmp_path: Path) -> None:
    """The exception is inserted after the rejecting rule, and therefore precedes that rule."""
    made = user_data(URL, CLUSTER, PLACE, session_manager=True)(REQUEST)
    rendered = gzip.decompress(made).decode()
    assert "session_manager='1'" in rendered
    assert "session_manager=''" in script()
    unit = tmp_path / "detcloud-firewall.service"
    begin = rendered.index("[Unit]\nDescription=Keeps everybody")
    unit.write_text(rendered[begin : rendered.index("\nUNIT", begin)])
    block = rendered[rendered.index("  sed -i '/^ExecStart") :]
    edit = block[: block.index("\n", block.index("detcloud-firewall.service"))]
    subprocess.run(["bash", "-c", f"units={tmp_path}\n{edit}"], check=True)
    rules = [line for line in unit.read_text().splitlines() if "iptables -I OUTPUT -d 169" in line]
    assert [
        "--uid-owner detcloud -j REJECT" in rules[0],
        "--uid-owner root -j ACCEPT" in rules[1],
    ] == [
        True,
        True,
    ]
    assert len(rules) == 2


FILE_SYSTEMS = [
    {"id": "fs-0123456789abcdef0", "folder": "/mnt/data"},
    {"id": "fs-11111111", "folder": "/mnt/fast", "type": "fsx_lustre", "mount_name": "abcdefgh"},
]


def test_trials_may_mount_the_pools_file_systems() -> None:
    section = {"allowed_mounts": ["/mnt/more"], "file_systems": FILE_SYSTEMS}
    text = script(replace(REQUEST, section=json.dumps(section)))
    assert "mounts='/mnt/more /mnt/data /mnt/fast'\n" in text
    # File systems are mounted before the agent starts, also after a restart of the machine.
    assert "mount_points='/mnt/data /mnt/fast'\n" in text
    assert "RequiresMountsFor=$mount_points\n" in text
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0
    assert "mount_file_system" not in script()


def mount_file_systems(
    tmp_path: Path, programs_there: Sequence[str], failing: str = ""
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the mounting part of the script with programs that log their arguments.

    Return the process and the log.
    """
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    (tmp_path / "etc").mkdir()
    for name in programs_there:
        (programs / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >> {log}\nexit {int(name == failing)}\n'
        )
        (programs / name).chmod(0o755)
    text = script(replace(REQUEST, section=json.dumps({"file_systems": FILE_SYSTEMS})))
    [(functions, calls)] = re.findall(
        r"^(install_nfs_client\(\) \{.*?^\}\n\n.*?^\})\n((?:mount_file_system [^\n]*\n)+)",
        text,
        re.M | re.S,
    )
    before = f"set -Eeuo pipefail; root={tmp_path}; region=eu-west-1\n"
    done = subprocess.run(
        ["bash", "-c", before + FAIL_BOOT + functions + "\n" + calls],
        # The path lacks the folder of a real mount.nfs4.
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    return done, log


def test_nfs_client_is_installed_after_a_package_update(tmp_path: Path) -> None:
    done, log = mount_file_systems(tmp_path, ("apt-get", "modprobe", "mount"))
    assert done.returncode == 0, done.stderr
    calls = [line.split() for line in log.read_text().splitlines() if line.startswith("apt-get")]
    assert ["update" in words for words in calls] == [True, False]
    assert {"install", "nfs-common"} <= set(calls[1])


@pytest.mark.parametrize("failing", ["", "mount", "modprobe"])
def test_boot_mounts_file_systems_or_fails(tmp_path: Path, failing: str) -> None:
    there = ("apt-get", "modprobe", "mount", "mount.nfs4")
    done, log = mount_file_systems(tmp_path, there, failing)
    assert (done.returncode == 0) is (not failing)
    if failing == "modprobe":
        assert (
            "the machine image has no Lustre client, which the file system fs-11111111 needs"
            in done.stdout
        )
    if failing == "mount":
        assert "fs-0123456789abcdef0.efs.eu-west-1.amazonaws.com:/ cannot be mounted" in done.stdout
    if not failing:
        assert log.read_text() == "mount /mnt/data\nmodprobe lustre\nmount /mnt/fast\n"
        table = [line.split()[:3] for line in (tmp_path / "etc/fstab").read_text().splitlines()]
        assert table == [
            ["fs-0123456789abcdef0.efs.eu-west-1.amazonaws.com:/", "/mnt/data", "nfs4"],
            ["fs-11111111.fsx.eu-west-1.amazonaws.com@tcp:/abcdefgh", "/mnt/fast", "lustre"],
        ]


def test_user_data_with_a_startup_script_is_compressed() -> None:
    startup = "# " + "x" * 8_000
    section = json.dumps({"startup_script": startup})
    made = user_data(URL, CLUSTER, PLACE)(replace(REQUEST, section=section))
    assert len(made) <= USER_DATA_BYTES_MAX
    encoded = base64.b64encode(startup.encode())
    assert encoded in gzip.decompress(made)
    assert gzip.decompress(made).startswith(b"#!/bin/bash\n")
