#!/usr/bin/env bash
# The Python packages of a requirements.lock that the base image lacks, and nothing else:
# install_python_packages.sh FOLDER-WITH-LOCK-AND-VERSIONS
set -euo pipefail

readonly lists="$1"
here="$(dirname "$0")"
readonly here
work="$(mktemp --directory)"
readonly work
trap 'rm -rf "${work}"' EXIT

python3 -B "${here}/python_lock.py" lacking "${lists}/requirements.lock" "${lists}/versions.json" \
    "${work}/requirements.txt" "${work}/shipped.json"
# The base's PIP_CONSTRAINT forbids other versions of what it ships. The list holds nothing of that but the
# packages to replace, which it would refuse; the check below is stricter: nothing else may have changed.
export PIP_CONSTRAINT="" PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1
# uv leaves a lock file in the folder for temporary files.
export TMPDIR="${work}"
python3 -B "${here}/install_with_uv.py" --no-deps --require-hashes --only-binary :all: \
    --requirement "${work}/requirements.txt"
python3 -B "${here}/python_lock.py" check "${lists}/requirements.lock" "${lists}/versions.json" \
    "${lists}/requirements.in" "${work}/shipped.json"
# After the check, which would find the agent's pin of torch unmet. Its build back end is in the lock.
python3 -B "${here}/install_with_uv.py" --no-deps --require-hashes --no-binary :all: --no-build-isolation \
    --requirement "${here}/agent.lock"
