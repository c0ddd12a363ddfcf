#!/usr/bin/env bash
# The command that SageMaker starts a container with: docker run IMAGE serve. exec, so that the server gets SIGTERM.
# It listens on all addresses. The operator of the container decides who can reach its port.
set -euo pipefail

exec python3 -m seqlm serve --host 0.0.0.0 "$@"
