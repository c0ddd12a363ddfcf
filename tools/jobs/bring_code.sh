#!/usr/bin/env bash
# The training code on the shared file system, whole or not at all: bring_code.sh REGION S3-ADDRESS FOLDER
# FOLDER is where node setup would put this version. Run as root on the node that jobs are submitted from, which reads the bucket.
set -euo pipefail
umask 022

readonly region="$1" address="${2%/}/" folder="$3"
if [[ -d "${folder}" ]]; then
    # Its days count from now, because node setup removes versions that were not in use for long.
    touch "${folder}"
    exit 0
fi
partial="${folder%/*}/.${folder##*/}.partial-$$"
trap 'rm -rf "${partial}"' EXIT
mkdir -p "${partial}"
aws s3 cp --recursive --only-show-errors --region "${region}" "${address}" "${partial}/" || {
    echo "error: the code could not be copied from ${address} to ${partial}; is there room? df -h ${partial}" >&2
    exit 1
}
# Another submission of the same version may have brought it meanwhile.
message="$(mv --no-target-directory "${partial}" "${folder}" 2>&1)" || [[ -d "${folder}" ]] || {
    echo "error: ${message}" >&2
    exit 1
}
