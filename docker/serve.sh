#!/usr/bin/env bash
# The command that SageMaker starts a container with: docker run IMAGE serve. exec, so that the server gets SIGTERM.
# All addresses: who reaches the container's port is for whoever runs it to say.
set -euo pipefail

exec python3 -m workloads.esm2.serving --host 0.0.0.0 "$@"
