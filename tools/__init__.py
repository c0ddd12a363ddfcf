"""Commands of the cluster's operator, behind make: preflight, diff, connect, teardown."""
