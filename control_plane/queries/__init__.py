"""Answers to questions about the cluster: one module per noun, the models and how they are read."""
