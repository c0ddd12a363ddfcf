#!/usr/bin/env bash
# Fetches the scripts from S3 into a folder that only root can enter, and runs one of them there:
# run_from_s3.sh REGION S3_URI COMMAND...
# S3_URI is a version of the scripts, or the object `current`, which holds the address of one. New nodes begin with
# the object. apply_to_cluster.py and `make apply-lifecycle` send this script to nodes that have no scripts yet.
set -euo pipefail

readonly region="$1" log_file="${DESTDIR:-}/var/log/provision/provisioning.log"
uri="$2"
shift 2

# By default, the aws command asks the instance once for its credentials and waits one second for them. A node that
# starts much at once is slower.
export AWS_METADATA_SERVICE_NUM_ATTEMPTS=5 AWS_METADATA_SERVICE_TIMEOUT=5

fail() {
    mkdir --parents "$(dirname "${log_file}")"
    printf 'ERROR: %s\n' "$1" | tee --append "${log_file}"
    # The service ships the log in intervals, so that a new node that fails at once would leave no log.
    sleep "${SECONDS_TO_SHIP_LOG:-0}"
    exit 1
}

# Hundreds of nodes fetch at once, so the aws command retries. A closed network reaches only the cluster's region.
copy() {
    AWS_RETRY_MODE=adaptive AWS_MAX_ATTEMPTS=10 aws s3 cp --region "${region}" --only-show-errors "$@" ||
        fail "the scripts could not be fetched from ${uri}. What to do: see the message above; the role of the \
node may read lifecycle/ of the artifact bucket, through the network's S3 endpoint or NAT"
}

if [[ "${uri}" == */current ]]; then
    version="$(copy "${uri}" -)" || { printf '%s\n' "${version}" && exit 1; }
    [[ "${version}" =~ ^s3://[a-z0-9.-]+/lifecycle/[0-9a-f]{16}$ ]] ||
        fail "${uri} holds '${version:0:100}', which is no version of the scripts. What to do: make deploy writes it"
    uri="${version}"
fi
parent="$(mktemp --directory)"
readonly parent
trap 'rm -rf "${parent}"' EXIT
# The last part of the address is the hash that names these scripts; the state file keeps it.
readonly folder="${parent}/${uri##*/}"

printf 'run_from_s3: %s on %s\n' "${uri}" "$(hostname)"
copy --recursive "${uri}/" "${folder}/"
cd "${folder}"
"$@"
