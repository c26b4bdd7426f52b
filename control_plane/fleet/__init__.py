"""The stored rows of resource pools' instances, which the provisioner writes."""
