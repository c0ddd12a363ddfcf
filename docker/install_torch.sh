#!/usr/bin/env bash
# Install the pinned torch into the environment of PYTHON: install_torch.sh PYTHON
# A build without CUDA is a version of its own (2.13.0+cpu). It is taken if a place of pip's settings offers it.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly python="$1"

version="$(sed -n 's/^torch==//p' requirements.txt)"
readonly version
if ! offered="$("${python}" docker/install_with_uv.py --dry-run --no-deps --force-reinstall "torch==${version}" 2>&1)"; then
    printf '%s\n' "${offered}" >&2
    exit 1
fi
lock=environments/torch.lock
if [[ "${offered}" == *"${version}+cpu"* ]]; then
    lock=environments/torch-cpu.lock
fi
"${python}" docker/install_with_uv.py --quiet --no-deps --require-hashes --requirement "${lock}"
