#!/usr/bin/env bash
# The command that SageMaker starts a container with: docker run IMAGE serve. exec, so that the server gets SIGTERM.
set -euo pipefail

exec python3 -m workloads.esm2.serving "$@"
