"""A preloaded module for forked victims: all work of a victim, done once at import.

Otherwise a victim would take longer to start than to work.
"""

import contextlib
import os
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.checkpoint_cluster import CheckpointCluster

# Modules of the other stores.
STORE_MODULES = (
    "control_plane.checkpoint_stores.hdfs_files",
    "control_plane.checkpoint_stores.bucket_files",
    "boto3",
    "google.cloud.storage",
    "azure.storage.blob",
)


def _rehearse() -> None:
    """Rehearse in a temporary folder, and import the modules of other stores."""
    before, place = dict(os.environ), Path.cwd()
    with TemporaryDirectory(prefix="detcloud-rehearsed-") as folder, contextlib.ExitStack() as left:
        left.callback(os.chdir, place)
        nowhere = left.enter_context(Path(os.devnull).open("w"))
        left.enter_context(contextlib.redirect_stdout(nowhere))
        storage = {"type": "directory", "path": f"{folder}/store"}
        CheckpointCluster(Path(folder), storage).rehearse()
    os.environ.clear()
    os.environ.update(before)
    with contextlib.suppress(ImportError):
        for name in STORE_MODULES:
            import_module(name)


_rehearse()
