"""`python -m infra.gcp.bundle`: builds archives of the sources for images of functions.

An archive contains the build folder of `infra.function_image`. The same sources and packages
result in the same bytes, and the digest of these bytes is the image's tag.
"""

import argparse
import gzip
import io
import sys
import tarfile
import tempfile
from pathlib import Path

from infra.function_image import EXTRAS, fill_build_folder
from infra.sources import REPOSITORY


def build_archive(folder: Path, kind: str = "functions") -> Path:
    """Build an archive in `folder` and return the archive's path.

    `kind` is `functions`, or `suggest` for the function that needs more packages. Create the
    folder, and replace an existing archive. Raise PackageNotFoundError if a required package is not
    installed, KeyError for another kind, and OSError if a file cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / archive_name(kind)
    with tempfile.TemporaryDirectory() as scratch:
        content = Path(scratch) / "content"
        fill_build_folder(content, kind)
        _write_archive(content, archive)
    return archive


def archive_name(kind: str) -> str:
    """Return the file name of an archive of the kind `functions` or `suggest`."""
    return f"{kind}-image.tar.gz"


def _write_archive(content: Path, archive: Path) -> None:
    """Write the files below `content` as a gzipped tar file, which replaces `archive` at the end.

    Equal files give equal bytes: the times and modes of the files are not stored. Raise OSError if
    a file cannot be read or written. The former archive then stays.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as written:
        for found in sorted(content.rglob("*")):
            if found.is_file():
                info = tarfile.TarInfo(str(found.relative_to(content)))
                info.size, info.mode = found.stat().st_size, 0o644
                with found.open("rb") as file:
                    written.addfile(info, file)
    partial = archive.with_suffix(".partial")
    partial.write_bytes(gzip.compress(packed.getvalue(), compresslevel=6, mtime=0))
    partial.replace(archive)


def main() -> int:
    """Build the archives of all kinds, print the paths and sizes, and return 0.

    Raise PackageNotFoundError if a required package is not installed.
    """
    parser = argparse.ArgumentParser(prog="python -m infra.gcp.bundle", description=__doc__)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist", help="the folder")
    folder = parser.parse_args().output
    for kind in EXTRAS:
        archive = build_archive(folder, kind)
        print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
