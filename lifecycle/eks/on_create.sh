#!/usr/bin/env bash
# HyperPod runs this as root, once on each new node of an EKS cluster, before the node joins. A status other
# than 0 fails the node. It may be run again at any time. It keeps pods from the node's credentials, puts files of
# containers on the local disk, and sets up EFA to Lustre. For Amazon Linux 2 and 2023. Only tests set DESTDIR.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly here
readonly log_file="${DESTDIR:-}/var/log/provision/provisioning.log"
readonly storage=container-storage.service rules=keep-pods-from-metadata.service
# The service ships the log in intervals, so that a node that fails at once would leave no log.
readonly seconds_to_ship_log=60

log() {
    printf '%s on_create: %s\n' "$(date --utc +%Y-%m-%dT%H:%M:%SZ)" "$*"
}

# Running containers would lose their open files.
containers_run() {
    [[ -n "$(ctr --namespace k8s.io tasks list --quiet 2>/dev/null)" ]]
}

install_service() {
    local unit="$1" script="$2"
    install -D --mode=0755 "${here}/${script}" "${DESTDIR:-}/usr/local/sbin/$(basename "${script//_/-}" .sh)"
    install -D --mode=0644 "${here}/${unit}" "${DESTDIR:-}/etc/systemd/system/${unit}"
}

main() {
    log "start on $(hostname)"
    install_service "${storage}" place_container_storage.sh
    if [[ -e "${here}/pods_reach_metadata" ]]; then
        log "WARNING: pods may reach the node's credentials at 169.254.169.254 (kubernetes.pod_metadata_access)"
    else
        install_service "${rules}" keep_pods_from_metadata.sh
    fi
    [[ ! -e "${here}/proxy" ]] || use_proxy
    systemctl daemon-reload
    # Both run at every boot before containerd and kubelet. The rules are lost at a boot, and the instance store may
    # be empty.
    systemctl enable "${storage}"
    [[ -e "${here}/pods_reach_metadata" ]] || keep_pods_from_metadata
    if "${DESTDIR:-}/usr/local/sbin/place-container-storage" --check; then
        log "container storage is where it belongs"
    elif containers_run; then
        log "WARNING: containers run, their storage stays on the root volume. Replace the node to move it"
    else
        move
    fi
    if [[ -e "${here}/lustre_efa" ]]; then
        set_up_lustre_efa
    fi
    log "done"
}

# The file has a line NAME=value for each variable. Both services start after this script, or start again below.
use_proxy() {
    local service
    install -D --mode=0644 "${here}/proxy" "${DESTDIR:-}/etc/node-setup/proxy"
    for service in containerd kubelet; do
        mkdir --parents "${DESTDIR:-}/etc/systemd/system/${service}.service.d"
        printf '[Service]\nEnvironmentFile=/etc/node-setup/proxy\n' \
            >"${DESTDIR:-}/etc/systemd/system/${service}.service.d/50-node-setup-proxy.conf"
    done
    if systemctl is-active --quiet containerd && ! containers_run; then
        systemctl daemon-reload
        systemctl restart containerd
    fi
    log "containerd and kubelet use the proxy $(sed --quiet 's/^https_proxy=//p' "${here}/proxy")"
}

# Pods mount the file system later, over the network that the node is set up for. TCP works without this.
set_up_lustre_efa() {
    local url sha256
    read -r url sha256 <"${here}/lustre_efa"
    bash "${here}/set_up_lustre_efa.sh" "${url}" "${sha256}" || log "WARNING: pods mount Lustre over TCP; see above"
}

keep_pods_from_metadata() {
    systemctl enable "${rules}"
    if ! systemctl restart "${rules}"; then
        log "ERROR: pods would reach the node's credentials at 169.254.169.254. See: journalctl --unit ${rules}"
        return 1
    fi
    log "pods are kept from the instance metadata service"
}

move() {
    local active="" service
    # Kubelet comes first, because it would start containerd again. A new node has no kubelet yet.
    for service in kubelet containerd; do
        if systemctl is-active --quiet "${service}"; then
            systemctl stop "${service}"
            active="${service} ${active}"
        fi
    done
    # systemd runs it, so that the whole system sees the mounts.
    systemctl restart "${storage}"
    for service in ${active}; do
        systemctl start "${service}"
    done
    if ! "${DESTDIR:-}/usr/local/sbin/place-container-storage" --check; then
        log "ERROR: container storage is still on the root volume. See: journalctl --unit ${storage}"
        return 1
    fi
}

mkdir -p "$(dirname "${log_file}")"
# The pipeline is the last command, so that its status is the script's. In `if ! main`, -e would not apply to main.
trap 'log "failed; the lines above say where; log: ${log_file}" | tee --append "${log_file}"
    sleep "${seconds_to_ship_log}"' ERR
main 2>&1 | tee --append "${log_file}"
