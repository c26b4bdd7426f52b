"""`python3 fetch_code.py URL REGION FILE`: fetches an instance's code from the cluster's bucket,
signed with the keys of the instance's role.
"""

import hashlib
import pathlib
import sys
import time
import urllib.request

from role_signature import SECONDS_MAX, sign

ATTEMPTS = 10
EMPTY = hashlib.sha256(b"").hexdigest()


def main():
    """Fetch the file, again while S3 or the metadata do not answer or do not know the role yet."""
    url, region, path = sys.argv[1:]
    for attempt in range(1, ATTEMPTS + 1):
        try:
            signed = sign("GET", url, region, "s3", {"x-amz-content-sha256": EMPTY})
            request = urllib.request.Request(url, headers=signed)
            with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
                content = answer.read()
            break
        except OSError as error:
            print(f"the agent's code could not be fetched from {url}: {error}")
            if attempt == ATTEMPTS:
                return 1
            time.sleep(3)
    pathlib.Path(path).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
