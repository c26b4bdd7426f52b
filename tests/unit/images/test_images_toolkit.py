"""The installation of NVIDIA's container toolkit, by the real apt-get, dpkg and gpg.

The packages are stubs in a local repository, and apt-get installs to a folder.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.emulators.apt_repository import (
    Package,
    SigningKey,
    architecture,
    installed_versions,
    signing_key,
    write_apt_root,
    write_repository,
)
from tests.emulators.server import require_program
from tests.emulators.stub_machine import FAIL_BOOT, StubMachine

SCRIPT = Path(__file__).parents[3] / "images/boot/gpus.sh"
# The fingerprint of NVIDIA's key, which only the script contains. No variable replaces it.
NVIDIA_KEY = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
VERSION, OLDER, NEWER = "1.18.1-1", "1.17.8-1", "1.19.0-1"
NAMES = (
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
)
# nvidia-ctk cdi generate --device-name-strategy=uuid --output=FILE
NVIDIA_CTK = 'echo "{version} $1 $2" > "${{4#--output=}}"'


def toolkit(version: str) -> list[Package]:
    """The toolkit's packages, with the names and dependencies of NVIDIA's."""
    library, base = "libnvidia-container1", "nvidia-container-toolkit-base"
    program = ("nvidia-ctk", NVIDIA_CTK.format(version=version))
    return [
        Package(library, version),
        Package("libnvidia-container-tools", version, f"{library} (>= {version})"),
        Package(base, version, "", (program,)),
        Package(
            "nvidia-container-toolkit",
            version,
            f"{base} (= {version}), libnvidia-container-tools (>= {version})",
        ),
    ]


@pytest.fixture(scope="module")
def keys() -> Iterator[tuple[SigningKey, SigningKey]]:
    """The expected key, in place of NVIDIA's, and the key of a stranger."""
    for name in ("apt-get", "dpkg-deb", "dpkg-query", "gpg", "gpgv", "curl"):
        require_program(name, remedy=f"only Debian has apt; apt-get install {name}")
    with signing_key("expected") as expected, signing_key("stranger") as stranger:
        yield expected, stranger


@dataclass
class Scene:
    """A machine with a GPU and without the toolkit, and a repository.

    `signer` signs the repository, None for an unsigned repository. `public` is the published key.
    """

    machine: StubMachine
    expected: SigningKey
    stranger: SigningKey
    signer: SigningKey | None
    public: bytes
    versions: list[str] = field(default_factory=lambda: [OLDER, VERSION, NEWER])

    @property
    def packages(self) -> Path:
        """The folder of the repository's packages."""
        return self.machine.root / f"place/stable/deb/{architecture()}"

    def publish(self) -> None:
        """Write the repository and the key."""
        packages = [package for version in self.versions for package in toolkit(version)]
        write_repository(self.packages, packages, self.signer)
        (self.machine.root / "place/gpgkey").write_bytes(self.public)

    def install(self) -> int:
        """Run gpus.sh on the machine, and return the exit status."""
        machine, root = self.machine, self.machine.root
        script = SCRIPT.read_text()
        assert script.count(NVIDIA_KEY) == 1
        script = script.replace(NVIDIA_KEY, self.expected.fingerprint)
        log = root / "var/log/detcloud-boot.log"
        begin = f"set -Eeuo pipefail; root={root}; gpus=1; exec > {log} 2>&1\n{FAIL_BOOT}"
        environment = {
            **write_apt_root(root),
            "DETCLOUD_TOOLKIT_PLACE": (root / "place").as_uri(),
            "TMPDIR": str(root),
            "LC_ALL": "C",
        }
        return machine.boot(begin + script, environment)


@pytest.fixture
def scene(tmp_path: Path, keys: tuple[SigningKey, SigningKey]) -> Scene:
    machine = StubMachine(tmp_path)
    machine.add_gpus(1)
    machine.remove("nvidia-ctk")
    machine.programs["apt-get"] = f'exec {require_program("apt-get")} "$@"'
    # The shell finds installed programs beside the stubs.
    (tmp_path / "usr").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "usr/bin").symlink_to("../bin")
    expected, stranger = keys
    return Scene(machine, expected, stranger, expected, expected.public)


def test_pinned_toolkit_is_installed_and_describes_the_gpus(scene: Scene) -> None:
    scene.publish()
    assert scene.install() == 0, scene.machine.log
    root = scene.machine.root
    assert installed_versions(root) == dict.fromkeys(NAMES, VERSION)
    assert (root / "etc/cdi/nvidia.yaml").read_text() == f"{VERSION} cdi generate\n"
    assert (root / "etc/docker/daemon.json").exists()
    # No folder with keys is left behind.
    assert list(root.glob("tmp.*")) == []


Break = Callable[[Scene], None]
"""Changes a scene before the repository is published."""


def stranger_published(scene: Scene) -> None:
    scene.signer, scene.public = scene.stranger, scene.stranger.public


def second_key_published(scene: Scene) -> None:
    scene.signer, scene.public = scene.stranger, scene.expected.public + scene.stranger.public


@pytest.mark.parametrize("break_scene", [stranger_published, second_key_published])
def test_script_refuses_other_keys_before_apt_runs(scene: Scene, break_scene: Break) -> None:
    break_scene(scene)
    scene.publish()
    assert scene.install() != 0
    [*_, last] = scene.machine.log.splitlines()
    assert last.endswith(f"/place is not the expected key {scene.expected.fingerprint}")
    assert not [line for line in scene.machine.commands if line.startswith("apt-get")]
    assert not (scene.machine.root / "etc/apt/keyrings").exists()


def stranger_signs(scene: Scene) -> None:
    scene.signer = scene.stranger


def nobody_signs(scene: Scene) -> None:
    scene.signer = None


def version_is_missing(scene: Scene) -> None:
    scene.versions = [OLDER, NEWER]


@pytest.mark.parametrize(
    ("break_scene", "cause"),
    [
        (stranger_signs, "NO_PUBKEY|Missing key"),
        (nobody_signs, "is not signed"),
        (version_is_missing, f"Version '{VERSION}' for 'nvidia-container-toolkit' was not found"),
    ],
)
def test_apt_refuses_repositories_with_the_reason(
    scene: Scene, break_scene: Break, cause: str
) -> None:
    break_scene(scene)
    scene.publish()
    assert_refused(scene, cause)


def test_apt_refuses_a_changed_index(scene: Scene) -> None:
    scene.publish()
    index = scene.packages / "Packages"
    index.write_bytes(index.read_bytes() + b"\n")
    assert_refused(scene, "Packages  Hash Sum mismatch")


def test_apt_refuses_a_changed_package(scene: Scene) -> None:
    scene.publish()
    changed = scene.packages / f"nvidia-container-toolkit-base_{VERSION}.deb"
    content = changed.read_bytes()
    changed.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert_refused(scene, "Hash Sum mismatch")


def assert_refused(scene: Scene, cause: str) -> None:
    """Assert that the installation fails with apt's cause, a pattern, and installs nothing."""
    assert scene.install() != 0
    log, root = scene.machine.log, scene.machine.root
    assert re.search(cause, log), log
    [*_, last] = log.splitlines()
    reason = f"NVIDIA's container toolkit {VERSION} could not be installed from"
    assert last == f"{reason} {(root / 'place').as_uri()}"
    assert installed_versions(root) == {}
    assert not (root / "bin/nvidia-ctk").exists()
