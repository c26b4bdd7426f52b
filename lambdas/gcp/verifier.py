"""The verifier of Compute Engine's instances, as a function's environment names it."""

from __future__ import annotations

import os

from control_plane.gcp.google_certificates import CERTIFICATES_URL, GoogleCertificates
from control_plane.gcp.instance_identity import GoogleIdentityVerifier


def open_verifier(cluster: str, project: str, account: str) -> GoogleIdentityVerifier:
    """Open the verifier of instances of a project that have a service account (its e-mail)."""
    # Another place than Google's is for emulators: who answers there says who is an instance.
    place = os.environ.get("DETCLOUD_CERTIFICATES_URL") or CERTIFICATES_URL
    return GoogleIdentityVerifier(cluster, project, account, GoogleCertificates(place))
