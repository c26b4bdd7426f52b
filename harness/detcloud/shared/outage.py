"""How long a cluster's API may be away before work is given up for it."""

# For the cluster an agent that was silent for so long is lost, even if nobody could hear it; a
# machine with work, and a checkpoint that needs keys, wait as long.
OUTAGE_SECONDS_MAX = 6 * 3600
