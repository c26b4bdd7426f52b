"""The use of slots: samples of GPUs and processes, sums, and the detection of low use."""
