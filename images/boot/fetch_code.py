"""`python3 fetch_code.py URL REGION FILE`: fetch the agent's code from the cluster's bucket.

The requests are signed with the keys of the instance's role.
"""

import hashlib
import sys
import urllib.request

from role_signature import fetch, sign

ATTEMPTS, PAUSE_SECONDS = 10, 3
EMPTY = hashlib.sha256(b"").hexdigest()


def main():
    """Write the object of the bucket at URL to the file FILE, with signed GET requests.

    The arguments of the command line are URL, REGION and FILE. Return 0, or 1 after ATTEMPTS failed
    attempts, PAUSE_SECONDS apart, which leave FILE unchanged. Each failure is printed. Raises
    ValueError for another number of arguments, and OSError if the file cannot be written.
    """
    url, region, path = sys.argv[1:]

    def make_request():
        signed = sign("GET", url, region, "s3", {"x-amz-content-sha256": EMPTY})
        return urllib.request.Request(url, headers=signed)

    return fetch(path, url, ATTEMPTS, PAUSE_SECONDS, make_request)


if __name__ == "__main__":
    sys.exit(main())
