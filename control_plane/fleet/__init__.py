"""The instances of resource pools, as rows that the provisioner writes and everybody may read."""
