"""The scrape configuration of Prometheus for a cluster."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

METRICS_PATH = "/api/v1/metrics"
INTERVAL = "1m"
"""The time between two scrapes. The cluster computes the metrics at most every 15 s."""
JOB = "detcloud"


def scrape_configuration(url: str, token_file: str) -> dict[str, Any]:
    """Return the configuration by which Prometheus reads the metrics of a cluster.

    User names and passwords in the address are left out.

    Args:
        url: the address of the cluster, http or https.
        token_file: the path of the file with the token, on the machine of Prometheus.
    """
    address = urlsplit(url)
    place = address.netloc.rpartition("@")[2]
    return {
        "scrape_configs": [
            {
                "job_name": JOB,
                "scheme": address.scheme,
                "metrics_path": address.path.rstrip("/") + METRICS_PATH,
                "scrape_interval": INTERVAL,
                "scrape_timeout": "30s",
                "authorization": {"type": "Bearer", "credentials_file": token_file},
                "static_configs": [{"targets": [place]}],
            }
        ]
    }
