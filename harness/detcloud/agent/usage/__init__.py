"""The use of slots: samples of GPUs and processes, their sums, and the policy for low use."""
