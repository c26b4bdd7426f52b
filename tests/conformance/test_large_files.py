"""A file larger than a store's limit for a request, mostly holes on the disk."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.shared.s3 import Bucket
from tests.emulators.seaweedfs import SeaweedFs

# S3 accepts 5 GiB in a single request.
SIZE = (5 << 30) + 70
MARKS = (0, 12_345, 3 << 30, (5 << 30) - 30, SIZE - 16)
# Enough for the emulator's files and other tests.
FREE_BYTES_MIN = 3 * SIZE
# Six parts of 5 MiB and their freed memory, beyond the size of a process of ours.
GROWTH_KIB_MAX = 150 * 1024

SEND = """
import resource, sys
from pathlib import Path
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.s3 import Bucket
name, url, region, access, secret, source = sys.argv[1:]
bucket = Bucket(BucketPlace(name, "", url, region, access, secret))
assert bucket.object_size("none") is None
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert bucket.send("large", Path(source))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def mark(place: int) -> bytes:
    """Return the 16 bytes at `place` in the file, which otherwise consists of zeros."""
    return hashlib.sha256(str(place).encode()).digest()[:16]


@pytest.mark.nightly
def test_file_larger_than_a_request_is_sent_to_s3_in_little_memory(
    s3: SeaweedFs, tmp_path: Path
) -> None:
    free = shutil.disk_usage(tmp_path).free
    if free < FREE_BYTES_MIN:
        pytest.skip(f"{free >> 30} GiB are free on the disk, {FREE_BYTES_MIN >> 30} are needed")
    source = tmp_path / "large"
    with source.open("wb") as file:
        file.truncate(SIZE)
        for at in MARKS:
            file.seek(at)
            file.write(mark(at))
    # Neither holes nor the copy of the test take disk space.
    assert source.stat().st_size == SIZE
    assert source.stat().st_blocks * 512 < 1 << 20
    place = s3.place()
    words = (place.name, place.endpoint_url, place.region, place.access_key, place.secret_key)
    sent = subprocess.run(
        [sys.executable, "-c", SEND, *map(str, words), str(source)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert sent.returncode == 0, sent.stderr
    assert int(sent.stdout) < GROWTH_KIB_MAX
    bucket = Bucket(place, s3.client)
    try:
        assert bucket.object_size("large") == SIZE
        for at in MARKS:
            assert b"".join(bucket.read("large", at, at + 16)) == mark(at)
        # Across the border of two parts of 5 MiB.
        assert b"".join(bucket.read("large", (5 << 20) - 4, (5 << 20) + 4)) == bytes(8)
        assert s3.client.list_multipart_uploads(Bucket=place.name).get("Uploads", []) == []
    finally:
        bucket.delete("large")
