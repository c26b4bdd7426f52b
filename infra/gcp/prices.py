"""Google's list prices in us-central1, in dollars, without the free tier.

Source: Google's price pages for Firestore (Standard), Cloud Run (request-based billing), Logging,
Monitoring, Scheduler, Artifact Registry and Cloud Storage, as of 2025-10. docs/gcp.md and the
benchmark of a deployed cluster use these prices.
"""

# Operations on Firestore documents.
READ = 0.30e-6
WRITE = 0.90e-6
DELETE = 0.10e-6
REQUEST = 0.40e-6
VCPU_SECOND = 0.000024
GIB_SECOND = 0.0000025
# Cloud Run rounds the billed time up to a multiple of SECONDS_MIN.
SECONDS_MIN = 0.1
LOG_GB = 0.50
# A class A operation in Cloud Storage, for example storing an object.
OBJECT_PUT = 5.0e-6
IMAGE_GB = 0.10
# Prices per month of 730 hours.
ALARM_CONDITION = 0.10
# A time series that a condition about a metric reads, every 30 seconds.
SERIES_READ = 0.35e-6
SERIES_READS_PER_MONTH = 730 * 120
SCHEDULER_JOB = 0.10
HOURS_PER_MONTH = 730
