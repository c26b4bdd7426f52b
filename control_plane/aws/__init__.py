"""The parts of the control plane that are specific to AWS: state table, object store, instance
identities, credentials and catalogue of instance types.
"""
