"""The program that checks cluster configurations, which pools.py defines."""
