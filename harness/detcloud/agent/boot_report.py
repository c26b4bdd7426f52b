"""Report of a boot that failed: `python -m detcloud.agent.boot_report < LOG` of a boot script.

The instance has no agent and no token yet. The report carries a proof of the instance's identity
that covers the report's digest and is valid for no other purpose. The module runs under the Python
of any machine image from 3.8 on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING

from detcloud.agent.clouds import CLOUDS, load_instance
from detcloud.shared.boot_log import clean_boot_log
from detcloud.shared.identity_purposes import BOOT_REPORT, proven_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS_MAX = 4
# A cluster answers 404 until a tick has recorded the instance, up to a minute after the launch. An
# instance may boot and fail earlier.
UNKNOWN, UNKNOWN_SECONDS_MAX = 404, 90.0
UNKNOWN_PAUSE_SECONDS = 5.0
ANSWER_SECONDS = 10.0
LOG_BYTES_MAX = 64 * 1024


def main() -> int:
    """Send the last 64 KiB of the standard input as a boot report.

    Return 0 if the cluster accepted the report, else 1. An empty input becomes "it wrote nothing".
    """
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
    """Call `send` until a call succeeds, and return whether a call succeeded.

    Each failure is printed to the standard error. After HTTP status 404, the cluster may not know
    the instance yet: retry every 5 s, for at most 90 s. Another status below 500 is a refusal:
    return False at once. After any other failure of a request, retry with a pause that grows by
    1 s, and give up after 4 failures. `pause` sleeps for a number of seconds.
    """
    attempts, waited = 0, 0.0
    while attempts < ATTEMPTS_MAX and waited < UNKNOWN_SECONDS_MAX:
        try:
            send()
        except (OSError, ValueError, HTTPException) as error:
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
    """Send a report to the cluster with a proof of the report's digest.

    `cloud` is the cloud's name in `clouds.CLOUDS`, `cluster` the cluster's id, `pool` the
    instance's resource pool. Raise OSError if the identity cannot be proven or the cluster does
    not accept the report. A refusal by the cluster is an `HTTPError`.
    """
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
