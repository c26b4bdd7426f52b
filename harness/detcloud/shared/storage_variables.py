"""The environment variables by which a trial's checkpoint store gets keys and the region.

Only the checkpoint store reads these variables. The variables of AWS's clients (`AWS_*`) are for
the user's code.
"""

CREDENTIALS_URI = "DETCLOUD_STORAGE_CREDENTIALS_URI"
CREDENTIALS_TOKEN = "DETCLOUD_STORAGE_CREDENTIALS_TOKEN"
REGION = "DETCLOUD_STORAGE_REGION"
