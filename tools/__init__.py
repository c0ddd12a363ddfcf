"""Commands for who runs the cluster, behind make: preflight, diff, connect, teardown."""
