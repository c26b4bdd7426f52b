"""A root folder like a Lambda function's: code in /var/task, the runtime in /var/runtime, Python in
/var/lang.

Only /tmp is writable, and the code runs as a separate user.
"""

import json
import os
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.emulators.server import missing

USER = 993
# Folders of this machine that stand in for the system image.
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ssl")
ENVIRONMENT = {
    "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",
    "AWS_LAMBDA_FUNCTION_NAME": "detcloud-vision-api",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1024",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_REGION": "eu-central-1",
    "LAMBDA_RUNTIME_DIR": "/var/runtime",
    "LAMBDA_TASK_ROOT": "/var/task",
    "LANG": "en_US.UTF-8",
    "LD_LIBRARY_PATH": "/var/lang/lib:/lib64:/usr/lib64:/var/runtime:/var/task:/opt/lib",
    "PATH": "/var/lang/bin:/usr/local/bin:/usr/bin/:/bin:/opt/bin",
    "PYTHONPATH": "/var/runtime",
    "TZ": ":UTC",
}
# Mounts in a separate namespace, so that no mount outlives the command.
_ENTER = """
set -e
root=$1 lang=$2; shift 2
for place in {system}; do
  [ -d "$place" ] || continue
  mkdir -p "$root$place"; mount --bind "$place" "$root$place"
  mount -o remount,bind,ro "$root$place"
done
mount --bind "$lang" "$root/var/lang"; mount -o remount,bind,ro "$root/var/lang"
for device in null urandom; do
  touch "$root/dev/$device"; mount --bind /dev/$device "$root/dev/$device"
done
mount -t tmpfs tmpfs "$root/tmp"; chmod 1777 "$root/tmp"
mount --bind "$root/var/task" "$root/var/task"; mount -o remount,bind,ro "$root/var/task"
exec /usr/sbin/chroot --userspec={user}:{user} "$root" /var/lang/bin/python3.13 -B "$@"
"""


class LambdaRoot:
    """A root at `folder`, with the archive's code and the Python of `interpreter`."""

    def __init__(self, folder: Path, archive: Path, interpreter: Path) -> None:
        if os.getuid() != 0:
            missing("chroot", "only root changes the root of files")
        self._folder = folder
        self._lang = interpreter.resolve().parents[1]
        for place in ("var/task", "var/runtime", "var/lang", "tmp", "dev"):
            (folder / place).mkdir(parents=True)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder / "var/task")

    def run(self, code: str, variables: Mapping[str, str]) -> Any:
        """Run Python code like the runtime, and return the JSON in the last printed line.

        Skip the test if this machine cannot mount.
        """
        script = _ENTER.format(system=" ".join(SYSTEM), user=USER)
        command = ["unshare", "--mount", "sh", "-c", script, "sh", self._folder, self._lang]
        # The folder of the code comes first on the module path.
        start = "import sys; sys.path.insert(0, '/var/task')\n"
        done = subprocess.run(
            [*map(str, command), "-c", start + code],
            env={**ENVIRONMENT, **variables},
            cwd="/",
            capture_output=True,
            text=True,
        )
        if "unshare" in done.stderr or "mount:" in done.stderr:
            missing("unshare", f"this machine mounts nothing: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])
