"""The control plane of a simulated cluster: hosts with faulty tables, and the network."""
