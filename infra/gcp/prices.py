"""Google's list prices in us-central1, in dollars, without a free tier.

Source: its pages of prices for Firestore (Standard), Cloud Run (paid while it answers), Logging,
Monitoring, Scheduler, Artifact Registry and Cloud Storage, as of 2025-10. docs/gcp.md and the bench
of the deployed form calculate with them.
"""

# Of documents.
READ = 0.30e-6
WRITE = 0.90e-6
DELETE = 0.10e-6
REQUEST = 0.40e-6
VCPU_SECOND = 0.000024
GIB_SECOND = 0.0000025
# The time for which an instance answers is rounded up to it.
SECONDS_MIN = 0.1
LOG_GB = 0.50
# An operation of class A in Cloud Storage, such as storing an object.
OBJECT_PUT = 5.0e-6
IMAGE_GB = 0.10
# Prices by the month, which has 730 hours.
ALARM_CONDITION = 0.10
SCHEDULER_JOB = 0.10
HOURS_PER_MONTH = 730
