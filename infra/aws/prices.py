"""AWS's list prices in us-east-1, in dollars, on demand and without a free tier.

Source: its pages of prices for DynamoDB, Lambda (arm64), API Gateway (HTTP APIs), CloudWatch, KMS
and S3, as of 2025-06. docs/aws.md and the bench of the deployed form calculate with them.
"""

WRITE_UNIT = 0.625e-6
READ_UNIT = 0.125e-6
API_REQUEST = 1.00e-6
INVOCATION = 0.20e-6
GB_SECOND = 0.0000133334
LOG_GB = 0.50
OBJECT_PUT = 0.005e-3
# One use of a key, also of AWS's own.
KEY_USE = 0.03e-4
# Prices by the month, which has 730 hours.
ALARM_METRIC = 0.10
CUSTOM_METRIC = 0.30
KEY = 1.00
# Of the table: storage, and storage for recovery.
STORED_GB = 0.25 + 0.20
HOURS_PER_MONTH = 730
