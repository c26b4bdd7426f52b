"""A signed repository of Debian packages, and a separate root for the real apt-get and dpkg."""

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.patience import PROCESS_SECONDS_MAX

# apt ignores the machine's own settings, and dpkg writes no log of the machine.
APT_SETTINGS = """
Dir "{root}/";
Dir::State::status "{root}/var/lib/dpkg/status";
APT::Sandbox::User "";
DPkg::Options {{ "--root={root}"; "--log={root}/var/log/dpkg.log"; "--force-not-root"; }};
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
"""


@dataclass(frozen=True)
class SigningKey:
    """A key of OpenPGP in a home folder of gpg."""

    home: Path
    fingerprint: str

    @property
    def public(self) -> bytes:
        """The armored public key."""
        return run("gpg", "--batch", "--homedir", self.home, "--armor", "--export")

    def sign(self, content: bytes) -> bytes:
        """Return the content within a signature."""
        return run("gpg", "--batch", "--homedir", self.home, "--clearsign", content=content)


@contextmanager
def signing_key(name: str) -> Iterator[SigningKey]:
    """Generate a key without passphrase that exists until the block ends.

    The path is short, because the path of gpg's socket has at most 107 characters.
    """
    with TemporaryDirectory(prefix="gpg-") as folder:
        home = Path(folder)
        options = ("gpg", "--batch", "--homedir", home, "--passphrase", "")
        try:
            run(*options, "--quick-generate-key", name, "rsa2048", "sign", "never")
            listed = run(*options, "--list-keys", "--with-colons").decode()
            records = [line.split(":") for line in listed.splitlines()]
            yield SigningKey(home, next(record[9] for record in records if record[0] == "fpr"))
        finally:
            run("gpgconf", "--homedir", home, "--kill", "all")


@dataclass(frozen=True)
class Package:
    """A package for this machine's architecture. `programs`: shell code by name in /usr/bin."""

    name: str
    version: str
    depends: str = ""
    programs: tuple[tuple[str, str], ...] = ()


def architecture() -> str:
    """The name of this machine's architecture in Debian."""
    return run("dpkg", "--print-architecture").decode().strip()


def write_repository(folder: Path, packages: list[Package], key: SigningKey | None) -> None:
    """Write a flat repository with the packages, signed by a key, or unsigned."""
    folder.mkdir(parents=True)
    for package in packages:
        _build(folder, package)
    index = "\n".join(_stanza(path) for path in sorted(folder.glob("*.deb"))).encode()
    (folder / "Packages").write_bytes(index)
    digest = hashlib.sha256(index).hexdigest()
    release = f"Suite: stable\nDate: {formatdate()}\nSHA256:\n {digest} {len(index)} Packages\n"
    (folder / "Release").write_text(release)
    if key is not None:
        (folder / "InRelease").write_bytes(key.sign(release.encode()))


def write_apt_root(root: Path) -> dict[str, str]:
    """Make a folder the root of apt-get and dpkg, without packages.

    Return the environment of apt-get. The user needs not be root.
    """
    for folder in ("etc/apt/preferences.d", "etc/apt/apt.conf.d", "etc/apt/auth.conf.d"):
        (root / folder).mkdir(parents=True)
    for folder in ("lib/apt/lists/partial", "cache/apt/archives/partial", "log/apt"):
        (root / "var" / folder).mkdir(parents=True)
    for folder in ("info", "updates", "triggers"):
        (root / "var/lib/dpkg" / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    settings = root / "apt.conf"
    settings.write_text(APT_SETTINGS.format(root=root))
    return {"APT_CONFIG": str(settings)}


def installed_versions(root: Path) -> dict[str, str]:
    """The versions of the packages that are installed in a root, by name."""
    form = "${db:Status-Abbrev} ${Package} ${Version}\n"
    place = f"--admindir={root}/var/lib/dpkg"
    lines = run("dpkg-query", place, "--show", f"--showformat={form}", "*", may_fail=True)
    records = [line.split() for line in lines.decode().splitlines()]
    return {name: version for status, name, version in records if status == "ii"}


def run(*command: str | Path, content: bytes = b"", may_fail: bool = False) -> bytes:
    """Run a program with `content` as its input, and return its output."""
    done = subprocess.run(
        command, input=content, capture_output=True, timeout=PROCESS_SECONDS_MAX, check=False
    )
    assert may_fail or done.returncode == 0, done.stderr.decode()
    return done.stdout


def _build(folder: Path, package: Package) -> None:
    name = f"{package.name}_{package.version}"
    with TemporaryDirectory(prefix="deb-") as place:
        control = Path(place) / "DEBIAN/control"
        control.parent.mkdir()
        fields = {
            "Package": package.name,
            "Version": package.version,
            "Architecture": architecture(),
            "Maintainer": "Tests <tests@example.org>",
            "Description": "A package of tests",
        }
        fields |= {"Depends": package.depends} if package.depends else {}
        control.write_text("".join(f"{field}: {value}\n" for field, value in fields.items()))
        # dpkg removes a package whose files all belong to other packages as well.
        document = Path(place) / "usr/share/doc" / package.name / "version"
        document.parent.mkdir(parents=True)
        document.write_text(name)
        for program, code in package.programs:
            path = Path(place) / "usr/bin" / program
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{code}\n")
            path.chmod(0o755)
        run("dpkg-deb", "--root-owner-group", "--build", place, folder / f"{name}.deb")


def _stanza(deb: Path) -> str:
    """Return the entry of a package in the index of the repository."""
    content = deb.read_bytes()
    control = run("dpkg-deb", "--field", deb).decode()
    digest = hashlib.sha256(content).hexdigest()
    return f"{control}Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {digest}\n"
