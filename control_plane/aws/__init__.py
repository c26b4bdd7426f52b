"""AWS's part of the control plane: its state table, object store, instance identities, credentials
and catalogue of instance types.
"""
