"""AWS's on-demand list prices in us-east-1, in dollars, without the free tier.

Source: AWS's price pages for DynamoDB, Lambda and Fargate (arm64), API Gateway (HTTP APIs),
CloudWatch, KMS, S3 and VPC, as of 2025-06. docs/aws.md and the benchmark of a deployed cluster use
these prices.
"""

WRITE_UNIT = 0.625e-6
READ_UNIT = 0.125e-6
API_REQUEST = 1.00e-6
INVOCATION = 0.20e-6
GB_SECOND = 0.0000133334
LOG_GB = 0.50
OBJECT_PUT = 0.005e-3
# A use of a KMS key, with the same price for AWS's managed keys.
KEY_USE = 0.03e-4
# Prices per month of 730 hours.
ALARM_METRIC = 0.10
CUSTOM_METRIC = 0.30
KEY = 1.00
# A GB in the table: storage, and storage for point-in-time recovery.
STORED_GB = 0.25 + 0.20
HOURS_PER_MONTH = 730
# A task of Fargate, and a public IPv4 address.
FARGATE_VCPU_HOUR = 0.03238
FARGATE_GIB_HOUR = 0.00356
ADDRESS_HOUR = 0.005
