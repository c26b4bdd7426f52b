"""Docker's folders on local disks of an instance."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulators.server import missing, require_program

SCRIPT = Path(__file__).parents[3] / "images/boot/docker.sh"
DISK_BYTES = 16 << 20
QUIET = ("systemctl", "mdadm")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    """The path of a block device that stands in for a local disk."""
    losetup = require_program("losetup", Path("/usr/sbin/losetup"), remedy="apt-get install mount")
    if os.getuid() != 0:
        missing("losetup", "only root makes block devices")
    content = tmp_path / "disk"
    content.write_bytes(b"")
    os.truncate(content, DISK_BYTES)
    made = subprocess.run(
        [losetup, "--find", "--show", content], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        missing("losetup", f"this machine makes no block devices: {made.stderr.strip()}")
    yield made.stdout.strip()
    subprocess.run([losetup, "--detach", made.stdout.strip()], check=True)


def boot(
    root: Path, programs: dict[str, str], then: str = "", before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the script with `root` as its disk, in a separate namespace of mounts.

    `programs`: shell code of stubs by name. `before` and `then`: shell code around the script.
    """
    folder = root / "bin"
    folder.mkdir(parents=True)
    for name, does in ({name: "exit 0" for name in QUIET} | programs).items():
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {root}/log\n{does}\n')
        (folder / name).chmod(0o755)
    return mount_apart(root, f"set -Eeuo pipefail; root={root}\n{before}\n. {SCRIPT}\n{then}")


def mount_apart(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a mount namespace that ends with the script, like mounts at a restart."""
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        # The disks of these tests are small.
        env={"PATH": f"{root}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DETCLOUD_DISK_GIB_MIN": "0"},
        capture_output=True,
        text=True,
    )


def start_again(root: Path, before: str = "") -> str:
    """Run the unit's commands as after a restart, and return the sources of Docker's mounts."""
    unit = (root / "etc/systemd/system/detcloud-disks.service").read_text()
    assert "Before=docker.service containerd.service" in unit
    commands = re.findall(r"^ExecStart=-?/bin/sh -c '(.*)'$", unit, re.MULTILINE)
    assert len(commands) == 3
    # systemd replaces `$$` by `$`.
    run = [f"/bin/sh -c {shlex.quote(command.replace('$$', '$'))}" for command in commands]
    shown = f'for it in docker containerd; do findmnt -no SOURCE "{root}/var/lib/$it"; done'
    done = mount_apart(root, "\n".join((before, *run, shown)))
    assert done.returncode == 0, done.stderr
    return done.stdout


def link(root: Path, *disks: str) -> None:
    by_id = root / "dev/disk/by-id"
    by_id.mkdir(parents=True)
    for number, disk in enumerate(disks):
        for suffix in ("", "-ns-1"):
            name = f"nvme-Amazon_EC2_NVMe_Instance_Storage_AWS{number}{suffix}"
            (by_id / name).symlink_to(disk)


def test_docker_folders_are_on_the_instances_local_disk(tmp_path: Path, disk: str) -> None:
    root = tmp_path / "machine"
    link(root, disk)
    then = 'for it in docker containerd; do findmnt -no SOURCE "$root/var/lib/$it"; done'
    done = boot(root, {"docker": "exit 0"}, then)
    assert done.returncode == 0, done.stderr
    said, *places = done.stdout.splitlines()
    assert said == f"Docker's folders are on the instance's own disks: {root}/mnt/detcloud"
    assert places == [f"{disk}[/docker]", f"{disk}[/containerd]"]
    log = (root / "log").read_text().splitlines()
    assert [name for name in log if name.startswith("systemctl")] == [
        "systemctl stop docker.socket docker containerd",
        "systemctl enable detcloud-disks.service",
        "systemctl restart docker",
    ]


def test_docker_folders_are_mounted_after_a_restart(tmp_path: Path, disk: str) -> None:
    root = tmp_path / "machine"
    link(root, disk)
    assert boot(root, {"docker": "exit 0"}).returncode == 0
    assert start_again(root) == f"{disk}[/docker]\n{disk}[/containerd]\n"


def test_unit_waits_for_disks_that_the_image_mounts(tmp_path: Path, disk: str) -> None:
    root = tmp_path / "machine"
    store = root / "opt/dlami/nvme"
    store.mkdir(parents=True)
    mount = f"mount {disk} {store}"
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    assert boot(root, {"docker": "exit 0"}, before=mount).returncode == 0
    # The image mounts the disk at the same time as the unit waits.
    assert start_again(root, f"{mount} &") == f"{disk}[/docker]\n{disk}[/containerd]\n"


def test_preinstalled_images_are_not_moved(tmp_path: Path, disk: str) -> None:
    root = tmp_path / "machine"
    link(root, disk)
    done = boot(root, {"docker": "echo 0123456789ab"}, 'findmnt "$root/var/lib/docker" || true')
    assert (done.returncode, done.stdout) == (0, "")


def test_machine_without_local_disks_is_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "machine"
    done = boot(root, {"docker": "exit 0"})
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert not (root / "mnt").exists()
    assert not (root / "etc").exists()
