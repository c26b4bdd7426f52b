"""The resource pool actor: the agents of a pool, the jobs that request slots, and the
allocations.
"""
