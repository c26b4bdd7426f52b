"""The longest outage of a cluster's API during which agents and trials keep their work."""

# After this time, the cluster counts a silent agent as lost, even if the silence is due to an
# outage of the API. Machines with work, and checkpoints that need keys, wait for the same time.
OUTAGE_SECONDS_MAX = 6 * 3600
