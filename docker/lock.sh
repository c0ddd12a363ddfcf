#!/usr/bin/env bash
# Lock the Python packages of the developer environment, of the environments beside it and of the images, each file with
# its hashes: make lock. Arguments are options of `uv pip compile`, such as --upgrade-package NAME.
# torch has a lock of its own, because its builds differ by machine, and the images' bases bring theirs.
set -euo pipefail
cd "$(dirname "$0")/.."

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
echo 'torch; python_version < "3"' >"${work}/no-torch.txt"
readonly without_torch=(--override "${work}/no-torch.txt")
more=("$@")

# Usage: lock INPUT OUTPUT [OPTION...]
lock() {
    local input="$1" output="$2"
    shift 2
    uv pip compile "${input}" --quiet --generate-hashes --no-header --no-annotate "$@" "${more[@]}" \
        --output-file "${output}"
}

# Usage: entries PATTERN FILE; prints the packages of a lock whose first line matches.
entries() {
    awk -v pattern="$1" '/^[^ ]/ { wanted = $0 ~ pattern } wanted' "$2"
}

# The developer environment.
readonly universal=(--python-version 3.11 --universal)
grep -v '^torch==' requirements.txt >"${work}/direct.txt"
lock "${work}/direct.txt" requirements.lock "${without_torch[@]}" "${universal[@]}"
{
    echo '# uv, which installs the packages (install_with_uv.py). make lock copies this from requirements.lock.'
    entries '^uv==' requirements.lock
} >docker/requirements-uv.txt
grep -E '^[A-Za-z0-9_.-]+==' requirements.lock | sed 's/ *\\$//' >"${work}/tested.txt"

# torch with CUDA, and without. Triton's version is torch's here.
grep '^torch==' requirements.txt >"${work}/torch.txt"
grep -v '^triton==' "${work}/tested.txt" >"${work}/tested-but-triton.txt"
lock "${work}/torch.txt" environments/torch.lock "${universal[@]}" --constraint "${work}/tested-but-triton.txt"
{
    # These builds are not in the index. requirements.txt lists their hashes.
    sed 's/$/+cpu \\/' "${work}/torch.txt"
    sed -n 's/^#   \(--hash=sha256:[0-9a-f]*\).*/    \1/p' requirements.txt | sed '$! s/$/ \\/'
    awk '/^[^ ]/ { wanted = !/^torch==/ && !/sys_platform == .linux./ } wanted' environments/torch.lock
} >environments/torch-cpu.lock

# Back ends that build the packages of which there is no wheel (install_with_uv.py).
{
    grep '^hatchling==' "${work}/tested.txt"
    entries '^setuptools==' environments/torch.lock | sed -n 's/ *\\$//; /==/p'
} >"${work}/build.txt"
lock "${work}/build.txt" docker/requirements-build.txt "${universal[@]}" --constraint "${work}/tested.txt"

# The environments beside it.
for name in awscli checkov oldest; do
    lock "environments/${name}.txt" "environments/${name}.lock" "${universal[@]}"
done
# It sees the packages of the developer environment behind its own.
lock environments/xla.txt environments/xla.lock "${universal[@]}" --constraint "${work}/tested-but-triton.txt"
# Its torch is that of the developer environment.
lock environments/biotrainer.txt environments/biotrainer.lock "${without_torch[@]}" "${universal[@]}"
# HyperPod's agent demands an older torch than it runs with, so its file lists what it needs.
lock environments/hyperpod.txt environments/hyperpod.lock "${universal[@]}" --no-deps

# The images take the versions that the tests run with.
for folder in docker docker/bionemo; do
    lock "${folder}/requirements.in" "${folder}/requirements.lock" "${without_torch[@]}" \
        --constraint "${work}/tested.txt" --python-version 3.12 --python-platform x86_64-manylinux_2_28
done
