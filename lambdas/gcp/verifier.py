"""The verifier of identity proofs of Compute Engine instances."""

from __future__ import annotations

import os

from control_plane.gcp.google_certificates import CERTIFICATES_URL, GoogleCertificates
from control_plane.gcp.instance_identity import GoogleIdentityVerifier


def open_verifier(cluster: str, project: str, account: str) -> GoogleIdentityVerifier:
    """Return the verifier of identity proofs for instances of a project and service account.

    The environment variable DETCLOUD_CERTIFICATES_URL replaces the URL of Google's certificates.

    Args:
        cluster: the id of the cluster that a proof must name.
        project: the id of the project.
        account: the e-mail address of the service account.
    """
    # Only emulators use another URL: a server at this URL decides which proofs are valid.
    place = os.environ.get("DETCLOUD_CERTIFICATES_URL") or CERTIFICATES_URL
    return GoogleIdentityVerifier(cluster, project, account, GoogleCertificates(place))
