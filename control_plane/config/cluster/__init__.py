"""The program that checks cluster configurations; pools.py defines them."""
