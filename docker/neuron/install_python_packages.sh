#!/usr/bin/env bash
# The Python packages of docker/requirements.lock in an environment of their own, through which the base's are seen:
# install_python_packages.sh FOLDER-OF-DOCKER ENVIRONMENT
# Not among the base's: AWS pins many of them, some to versions that ours do not go with.
set -euo pipefail

readonly here="$1" environment="$2"
readonly python="${environment}/bin/python3"

# uv leaves a lock file in the folder for temporary files, which the image must not keep.
work="$(mktemp --directory)"
readonly work
trap 'rm -rf "${work}"' EXIT
export TMPDIR="${work}"

python3 -m venv --system-site-packages "${environment}"
export PIP_NO_CACHE_DIR=1
# uv looks for installed packages in the environment alone; pip needs an option not to count the base's as installed.
export PIP_IGNORE_INSTALLED=1
"${python}" -B "${here}/install_with_uv.py" --no-deps --require-hashes --only-binary :all: \
    --requirement "${here}/requirements.lock"
# Its build back end is in the lock.
"${python}" -B "${here}/install_with_uv.py" --no-deps --require-hashes --no-binary :all: --no-build-isolation \
    --requirement "${here}/agent.lock"

"${python}" - "${here}/neuron/versions.json" <<'PYTHON'
import json
import sys
from importlib.metadata import version

pinned = json.load(open(sys.argv[1]))["base"]["torch"]
if version("torch") != pinned:
    sys.exit(f"error: torch is {version('torch')}, {sys.argv[1]} has {pinned}")
print("torch-neuronx", version("torch-neuronx"), "torch-xla", version("torch-xla"))
PYTHON
