#!/usr/bin/env bash
# HyperPod runs this as root, once on each new node, after its image has set up Slurm and the mounts. A non-zero
# status fails the node. It may be run again at any time (make apply-lifecycle): every step can be repeated.
# DESTDIR is set by tests alone.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly here
readonly destdir="${DESTDIR:-}"
readonly log_file="${destdir}/var/log/provision/provisioning.log"
# New clients of a large file system are let in over minutes, when hundreds of nodes start at once.
readonly mount_tries=30
readonly seconds_between_tries=10
readonly seconds_per_try=30
# curl's statuses for a refused and for an unanswered connection.
readonly curl_could_not_connect=7
readonly curl_timed_out=28
# The service ships the log in intervals; a node that fails at once leaves none behind.
readonly seconds_to_ship_log=60

log() {
    printf '%s on_init_complete: %s\n' "$(date --utc +%Y-%m-%dT%H:%M:%SZ)" "$*"
}

# A server that does not answer would block for ever. Killed at once, with all its children: one that outlived a
# request to end would hold the log open, and this script with it.
bounded() {
    timeout --signal=KILL "${seconds_per_try}" "$@"
}

# Fails unless the path is a mount of this type that takes a file and gives it back. Of mounts stacked on one path,
# such as an automount and what it has mounted, the last one listed is on top.
is_writable_mount() {
    local type="$1" path="$2" status=0 probe mounts
    probe="${path}/.probe-$(hostname)-$$"
    mounts="$(bounded findmnt --noheadings --output FSTYPE --mountpoint "${path}")" || return 1
    [[ "${mounts##*$'\n'}" == "${type}" ]] || return 1
    bounded bash "${here}/write_and_read_back.sh" "${probe}" || status=$?
    # Here, because what was killed cannot tidy up. A probe left behind is no reason to fail.
    bounded rm --force "${probe}" || log "could not remove ${probe}"
    return "${status}"
}

verify_mount() {
    local type="$1" path="$2" try
    for ((try = 1; try <= mount_tries; try++)); do
        if is_writable_mount "${type}" "${path}"; then
            log "${path}: ${type}, writable (try ${try})"
            return 0
        fi
        log "${path}: not a writable ${type} mount yet (try ${try} of ${mount_tries})"
        sleep "${seconds_between_tries}"
    done
    log "ERROR: ${path} is no writable ${type} mount after ${mount_tries} tries. Check that the cluster's security group lets the file system in and that the file system is AVAILABLE"
    return 1
}

# Installs the rules as a service of the system, so that they are there before the network at every boot.
block_instance_credentials() {
    install -D --mode=0755 "${here}/block_instance_credentials.sh" \
        "${destdir}/usr/local/sbin/block-instance-credentials"
    install -D --mode=0644 "${here}/block-instance-credentials.service" \
        "${destdir}/etc/systemd/system/block-instance-credentials.service"
    systemctl daemon-reload
    systemctl enable block-instance-credentials.service
    systemctl restart block-instance-credentials.service
    local status=0
    # Through a proxy the answer would be another machine's.
    runuser --user nobody -- curl --silent --output /dev/null --noproxy '*' --max-time 5 http://169.254.169.254/ ||
        status=$?
    if ((status != curl_could_not_connect && status != curl_timed_out)); then
        log "ERROR: user nobody must not reach the instance's credentials at 169.254.169.254: curl ended with ${status}, not ${curl_could_not_connect} (refused) or ${curl_timed_out} (no answer)"
        return 1
    fi
    log "instance credentials: root only"
}

main() {
    # shellcheck source=/dev/null
    source "${here}/settings.env"
    log "start on $(hostname)"
    block_instance_credentials
    verify_mount lustre "${LUSTRE_MOUNT_PATH}"
    if [[ -n "${HOME_MOUNT_PATH}" ]]; then
        verify_mount nfs4 "${HOME_MOUNT_PATH}"
    fi
    log "done"
}

mkdir -p "$(dirname "${log_file}")"
# As the last command its status is the script's, and -e stays in force inside main; `if ! main` would lift it.
trap 'log "failed; see ${log_file}" | tee --append "${log_file}"; sleep "${seconds_to_ship_log}"' ERR
main 2>&1 | tee --append "${log_file}"
