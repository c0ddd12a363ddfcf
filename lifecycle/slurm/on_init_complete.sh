#!/usr/bin/env bash
# HyperPod runs this as root, once on each new node, after its image has set up Slurm and the mounts. A non-zero
# status fails the node. It may be run again at any time (make apply-lifecycle): every step can be repeated.
# Only tests set DESTDIR and LIFECYCLE_PATIENCE, a factor of all waiting times.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly here
readonly log_file="${DESTDIR:-}/var/log/provision/provisioning.log"
# The service ships the log in intervals, so that a node that fails at once would leave no log. apply_to_cluster.py
# reads the output, and sets this to 0.
readonly seconds_to_ship_log="${SECONDS_TO_SHIP_LOG:-60}"

mkdir -p "$(dirname "${log_file}")"
trap 'echo "on_init_complete: failed; the lines above say which step, and what to do; log: ${log_file}" | tee --append "${log_file}" || true
    sleep "${seconds_to_ship_log}"' ERR
# Python ignores the caller's own folders and leaves no compiled files in the bundle. The status is that of the
# steps. A lost terminal or a full disk for the log does not change it.
python3 -s -B "${here}/bootstrap.py" 2>&1 | { tee --append --output-error=warn "${log_file}" || true; }
