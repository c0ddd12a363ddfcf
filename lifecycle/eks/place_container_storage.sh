#!/usr/bin/env bash
# Mounts folders of a local disk over containerd's and kubelet's: images, layers and pods' files leave the
# root volume of 100 GB. Mounts, because the configuration is another file on each Amazon Linux, which the
# node's own start writes anew. `--check` says by its status whether all is done. DESTDIR is set by tests.
set -euo pipefail

readonly root="${DESTDIR:-}"
# Instance store is faster and larger than the second EBS volume; either is lost with the node.
readonly disks="/opt/dlami/nvme /opt/sagemaker" seconds_for_disks=120
readonly id_file="${root}/var/lib/container-storage-id" disk_file="${root}/var/lib/container-storage-disk"

log() {
    printf '%s place-container-storage: %s\n' "$(date --utc +%Y-%m-%dT%H:%M:%SZ)" "$*"
}

device_of() {
    findmnt --noheadings --output MAJ:MIN --target "$1" | tail --lines=1 | tr --delete ' '
}

# A folder of the right name on the root volume is no disk.
is_local_disk() {
    findmnt --mountpoint "$1" >/dev/null && [[ "$(device_of "$1")" != "$(device_of "${root}/")" ]]
}

local_disk() {
    local disk
    for disk in ${disks}; do
        if is_local_disk "${root}${disk}"; then
            printf '%s' "${root}${disk}"
            return 0
        fi
    done
    return 1
}

# Formatting takes a while, and volumes may come late: waited for on a new node, and where one was before.
wait_for_disks() {
    local waited state
    for ((waited = 0; waited < seconds_for_disks; waited += 5)); do
        # An image without the service says inactive, as one does whose service has ended.
        state="$(systemctl show --property=ActiveState dlami-nvme.service 2>/dev/null || true)"
        if [[ "${state}" != ActiveState=activating ]]; then
            [[ ! -s "${id_file}" || -s "${disk_file}" ]] || return 0
            ! local_disk >/dev/null || return 0
        fi
        sleep 5
    done
}

# Where containerd keeps images: the first configuration that says so, of Amazon Linux 2023 and of 2.
containerd_root() {
    local file found
    for file in /etc/containerd/config.toml /etc/eks/containerd/containerd-config.toml; do
        [[ -f "${root}${file}" ]] || continue
        found="$(sed --quiet "s/^ *root *= *[\"']\(.*\)[\"'].*/\1/p" "${root}${file}" | head --lines=1)"
        [[ -z "${found}" ]] || break
    done
    printf '%s' "${root}${found:-/var/lib/containerd}"
}

is_placed() {
    mkdir -p "$1"
    [[ "$(device_of "$1")" != "$(device_of "${root}/")" ]]
}

# What an earlier root volume has left on the disk fits another image: only what this one put there is used.
forget_what_others_left() {
    local storage="$1"
    if ! cmp --quiet "${id_file}" "${storage}/id"; then
        rm -rf "${storage}"
        mkdir -p "${storage}"
        cp "${id_file}" "${storage}/id"
    fi
}

# Copies existing files, such as the image's own pause container. The final name appears only when it is complete.
place() {
    local folder="$1" target="$2"
    if [[ ! -d "${target}" ]]; then
        rm -rf "${target}.partial"
        cp --archive --one-file-system "${folder}" "${target}.partial"
        mv "${target}.partial" "${target}"
    fi
    mount --bind "${target}" "${folder}"
    log "${folder} is on ${target}"
}

wait_for_disks
[[ -s "${id_file}" ]] || cat /proc/sys/kernel/random/uuid >"${id_file}"
if ! disk="$(local_disk)"; then
    log "no local disk: containers stay on the root volume"
    exit 0
fi
printf '%s\n' "${disk}" >"${disk_file}"
for folder in "$(containerd_root)" "${root}/var/lib/kubelet"; do
    is_placed "${folder}" && continue
    [[ "${1:-}" != --check ]] || exit 1
    forget_what_others_left "${disk}/container-storage"
    place "${folder}" "${disk}/container-storage/$(basename "${folder}")"
done
