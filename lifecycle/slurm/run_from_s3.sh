#!/usr/bin/env bash
# Fetches the scripts from S3 into a folder that only root can enter, and runs one of them there:
# run_from_s3.sh REGION S3_URI COMMAND...
# It is sent to nodes that have no bundle yet, by apply_to_cluster.py and by `make apply-lifecycle`.
set -euo pipefail

readonly region="$1" uri="$2"
shift 2
parent="$(mktemp --directory)"
readonly parent
trap 'rm -rf "${parent}"' EXIT
# The last part of the address is the hash that names these scripts; the state file keeps it.
readonly folder="${parent}/${uri##*/}"

printf 'run_from_s3: %s on %s\n' "${uri}" "$(hostname)"
# Hundreds of nodes ask at once. In the cluster's own region: a closed network reaches no other.
AWS_RETRY_MODE=adaptive AWS_MAX_ATTEMPTS=10 aws s3 cp --region "${region}" --recursive --only-show-errors \
    "${uri}/" "${folder}/" || {
    printf 'ERROR: the scripts could not be fetched from %s. What to do: see the message above; the role of the %s\n' \
        "${uri}" "node may read lifecycle/ of the artifact bucket, through the network's S3 endpoint or NAT"
    exit 1
}
cd "${folder}"
"$@"
