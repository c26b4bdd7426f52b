"""The environment variables by which a trial's store of checkpoints gets its keys and region.

They are the store's alone: what AWS's clients read by themselves (`AWS_*`) is for the user's code.
"""

CREDENTIALS_URI = "DETCLOUD_STORAGE_CREDENTIALS_URI"
CREDENTIALS_TOKEN = "DETCLOUD_STORAGE_CREDENTIALS_TOKEN"
REGION = "DETCLOUD_STORAGE_REGION"
