"""`python -m infra.aws.bundle`: builds the archives that the deployed functions run from.

An archive holds the code of all functions and their packages, for one architecture and version of
Python. AWS updates the runtime's own botocore without notice. The archive therefore includes the
tested version, with the descriptions of only the AWS services that functions call. The function
`suggest` has its own archive with the same code, because its model's packages are larger than all
others together. The same sources and packages result in the same bytes, so that deploying without
changes leaves the functions alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infra.sources import REPOSITORY, copy_sources, extra_packages

# The kinds of archives, and the package extras that each kind includes.
EXTRAS = {"functions": ("functions",), "suggest": ("functions", "optuna")}
PINNED = ("botocore==1.44.8",)
# The services of AWS that functions call.
SERVICES = frozenset(
    {"dynamodb", "ec2", "ecr", "ecs", "lambda", "pricing", "s3", "sesv2", "sns", "sts"}
)
# Installed but never used; numpy's tests alone are four megabytes.
_DROPPED = ("bin", "**/tests")
_PIP = ("-m", "pip", "install", "--quiet", "--only-binary=:all:", "--no-compile")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Target:
    """A runtime of functions, for which packages are installed."""

    name: str
    """The name in TARGETS and in file names of archives."""
    python: str
    """Python's version, such as `3.13`."""
    machine: str
    """The processor in pip's platform names, such as `x86_64`."""
    glibc: int = 28
    """The minor version N of glibc 2.N; wheels for newer versions are not installed."""

    @property
    def platforms(self) -> tuple[str, ...]:
        """pip's names of compatible wheel platforms, from the newest glibc down to 2.17."""
        versions = [minor for minor in (34, 31, 28, 27, 24) if minor <= self.glibc]
        newer = [f"manylinux_2_{version}_{self.machine}" for version in versions]
        return (*newer, f"manylinux_2_17_{self.machine}", f"manylinux2014_{self.machine}")


TARGETS = {
    target.name: target
    for target in (
        # Amazon Linux 2023 has glibc 2.34, but few wheels need more than 2.28.
        Target("x86_64", "3.13", "x86_64"),
        Target("arm64", "3.13", "aarch64"),
        # An emulator of Lambda, which has an older interpreter.
        Target("emulator", "3.11", "x86_64"),
    )
}


def build_archive(
    target: Target,
    folder: Path,
    kind: str = "functions",
    install: Callable[[Target, Path, list[str]], None] | None = None,
) -> Path:
    """Build the target's archive in `folder` and return the archive's path.

    `kind` is `functions`, or `suggest` for the function that needs more packages. Create the
    folder, and replace an existing archive. Without `install`, packages are downloaded from the
    package index. Without an interpreter of the target's version, print a warning and leave the
    code uncompiled. Raise CalledProcessError if pip or the compiler fails, KeyError for another
    kind, and OSError if a file cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / archive_name(kind, target.name)
    with tempfile.TemporaryDirectory() as scratch:
        content = Path(scratch)
        (install or install_packages)(target, content, extra_packages(*EXTRAS[kind]))
        copy_sources(content)
        compile_code(target, content)
        _write_archive(content, archive)
    return archive


def archive_name(kind: str, architecture: str) -> str:
    """Return the file name of an archive of the kind `functions` or `suggest`."""
    return f"{kind}-{architecture}.zip"


def install_packages(target: Target, content: Path, packages: list[str]) -> None:
    """Install `packages` and PINNED for the target into `content`, and delete unused parts.

    Unused parts are tests, programs, and the descriptions of AWS services that no function calls.
    Raise CalledProcessError if pip fails, for example because no wheel exists.
    """
    place = ["--target", str(content)]
    place += [word for platform in target.platforms for word in ("--platform", platform)]
    version = ["--python-version", target.python, "--implementation", "cp"]
    subprocess.run([sys.executable, *_PIP, *place, *version, *packages, *PINNED], check=True)
    for folder in [path for pattern in _DROPPED for path in content.glob(pattern)]:
        # Deleting a parent folder has already deleted nested matches.
        if folder.is_dir():
            shutil.rmtree(folder)
    for folder in (content / "botocore" / "data").iterdir():
        if folder.is_dir() and folder.name not in SERVICES:
            shutil.rmtree(folder)


def compile_code(target: Target, content: Path) -> None:
    """Compile the code in `content` in place, which halves the functions' start-up time.

    Without an interpreter of the target's version, print a warning and compile nothing. Compiled
    files carry an unchecked hash, so that Python never compares them with the sources: an archive
    does not keep the sources' times. Raise CalledProcessError if compiling fails.
    """
    interpreter = find_interpreter(target.python)
    if interpreter is None:
        print(
            f"{target.name}: python{target.python} is not installed here, so the code is not "
            "compiled and functions start more slowly",
            file=sys.stderr,
        )
        return
    mode = ["--invalidation-mode", "unchecked-hash", "-s", str(content), "-q", str(content)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    subprocess.run([interpreter, "-m", "compileall", *mode], check=True, env=environment)


def find_interpreter(version: str) -> str | None:
    """Return the path of a working Python interpreter of a version like `3.13`.

    Search the running interpreter, the PATH and pyenv's versions, and run each candidate as proof.
    Return None if no candidate works.
    """
    check = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    others = sorted(versions.glob(f"{version}.*/bin/python{version}"))
    for found in (sys.executable, shutil.which(f"python{version}"), *map(str, others)):
        if found and subprocess.run([found, "-c", check], capture_output=True).returncode == 0:
            return found
    return None


def _write_archive(content: Path, archive: Path) -> None:
    """Write the files below `content` as a ZIP file, which replaces `archive` once complete.

    Equal files give equal bytes: the times and modes of the files are not stored.
    """
    partial = archive.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as written:
        for found in sorted(content.rglob("*")):
            if found.is_file():
                info = zipfile.ZipInfo(str(found.relative_to(content)), _EPOCH)
                info.external_attr = 0o644 << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                written.writestr(info, found.read_bytes())
    partial.replace(archive)


def main() -> int:
    """Build all kinds of archives for the targets named on the command line; return 0.

    Without targets, build for x86_64 and arm64. Print the path and size of each archive. An unknown
    target exits with status 2 and a usage error. Raise CalledProcessError if a build fails.
    """
    parser = argparse.ArgumentParser(prog="python -m infra.aws.bundle", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist", help="the folder")
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; expected one of {', '.join(TARGETS)}")
    for name in options.targets or ("x86_64", "arm64"):
        for kind in EXTRAS:
            archive = build_archive(TARGETS[name], options.output, kind)
            print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
