"""The alarms that the cluster decides, and the runbook's pages for all alarms."""
