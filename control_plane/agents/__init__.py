"""What agents and the cluster say to each other: reports up, desired state down, leases between."""
