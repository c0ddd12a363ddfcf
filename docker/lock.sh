#!/usr/bin/env bash
# Lock the Python packages of the developer environment and of the images, each file with its hashes: make lock.
# Arguments are options of `uv pip compile`, such as --upgrade-package NAME.
# torch is in no lock: its wheel depends on the machine (CPU or CUDA), and the images' bases bring their own.
set -euo pipefail
cd "$(dirname "$0")/.."

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
echo 'torch; python_version < "3"' >"${work}/no-torch.txt"
options=(--quiet --override "${work}/no-torch.txt" --generate-hashes --no-header --no-annotate)

grep -v '^torch==' requirements.txt >"${work}/direct.txt"
uv pip compile "${work}/direct.txt" "${options[@]}" --python-version 3.11 --universal "$@" --output-file requirements.lock
{
    echo '# uv, which installs the packages (install_with_uv.py). make lock copies this from requirements.lock.'
    awk '/^[^ ]/ { wanted = /^uv==/ } wanted' requirements.lock
} >docker/requirements-uv.txt

# The images take the versions that the tests run with.
grep -E '^[A-Za-z0-9_.-]+==' requirements.lock | sed 's/ *\\$//' >"${work}/tested.txt"
for folder in docker docker/bionemo; do
    uv pip compile "${folder}/requirements.in" "${options[@]}" --constraint "${work}/tested.txt" \
        --python-version 3.12 --python-platform x86_64-manylinux_2_28 "$@" --output-file "${folder}/requirements.lock"
done
