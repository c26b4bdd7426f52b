"""Report of a boot that failed: `python -m detcloud.agent.boot_report < LOG` of a boot script.

The instance has no agent and no token yet. It proves who it is to its cluster, as an agent does,
by a proof of the report's digest, which is good for that purpose alone. Whatever Python a machine
image has runs this, from 3.10 on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from detcloud.agent.clouds import CLOUDS, load_instance
from detcloud.shared.boot_log import clean_boot_log
from detcloud.shared.identity_purposes import BOOT_REPORT, proven_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS_MAX = 4
# Where launches are looked at later, by the next minute's tick, a machine may boot, and fail,
# before its cluster knows of it.
UNKNOWN, UNKNOWN_SECONDS_MAX = 404, 90.0
UNKNOWN_PAUSE_SECONDS = 5.0
ANSWER_SECONDS = 10.0
LOG_BYTES_MAX = 64 * 1024


def main() -> int:
    """Send what is on the standard input; return 1 where the cluster did not take it."""
    parser = argparse.ArgumentParser(prog="detcloud.agent.boot_report", description=__doc__)
    clouds = [cloud.name for cloud in CLOUDS]
    parser.add_argument("--cloud", required=True, choices=clouds, help="the instance's")
    parser.add_argument("--url", required=True, help="the cluster's API")
    parser.add_argument("--cluster", required=True, help="its id")
    parser.add_argument("--pool", required=True, help="the instance's pool")
    options = parser.parse_args()
    text = sys.stdin.buffer.read()[-LOG_BYTES_MAX:].decode(errors="replace")
    report = clean_boot_log(text) or "it wrote nothing"

    def send() -> None:
        send_report(options.cloud, options.url, options.cluster, options.pool, report)

    return 0 if deliver(send) else 1


def deliver(send: Callable[[], None], pause: Callable[[float], None] = time.sleep) -> bool:
    """Call `send` until it raises nothing, and return whether it did so: an instance that is not
    known yet tries for longer than one that is not answered, and one that is refused does not.
    """
    attempts, waited = 0, 0.0
    while attempts < ATTEMPTS_MAX and waited < UNKNOWN_SECONDS_MAX:
        try:
            send()
        except (OSError, ValueError) as error:
            print(f"the boot report was not accepted: {error}", file=sys.stderr)
            status = error.code if isinstance(error, urllib.error.HTTPError) else 500
            if status == UNKNOWN:
                waited += UNKNOWN_PAUSE_SECONDS
                pause(UNKNOWN_PAUSE_SECONDS)
                continue
            if status < 500:
                return False
            attempts += 1
            pause(attempts)
        else:
            return True
    return False


def send_report(cloud: str, url: str, cluster: str, pool: str, report: str) -> None:
    """Send a report with a proof of its digest. Raises OSError where it is not taken."""
    digest = hashlib.sha256(report.encode()).hexdigest()
    proof = load_instance(cloud).make_proof(proven_cluster(cluster, BOOT_REPORT), digest)
    body = json.dumps({"resource_pool": pool, "report": report, **proof.fields}).encode()
    request = urllib.request.Request(
        f"{url}/api/v1/instances/{proof.instance_id}/boot-report",
        body,
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        answer.read(LOG_BYTES_MAX)


if __name__ == "__main__":
    raise SystemExit(main())
