#!/usr/bin/env bash
# Mounts folders of a local disk over containerd's and kubelet's: images, layers and pods' files leave the
# root volume of 100 GB. The configuration is not changed, because it is another file on each Amazon Linux, which
# the node's start overwrites. The status of `--check` is 0 if all is done. Only tests set DESTDIR.
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

# A folder of this name on the root volume is not a disk.
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

# Formatting takes a while, and volumes may come late. A new node waits, and a node that had a disk before.
wait_for_disks() {
    local waited state
    for ((waited = 0; waited < seconds_for_disks; waited += 5)); do
        # The state is inactive if the service has ended, and also if the image has no such service.
        state="$(systemctl show --property=ActiveState dlami-nvme.service 2>/dev/null || true)"
        if [[ "${state}" != ActiveState=activating ]]; then
            [[ ! -s "${id_file}" || -s "${disk_file}" ]] || return 0
            ! local_disk >/dev/null || return 0
        fi
        sleep 5
    done
}

# Folder of containerd's images, from the first configuration that sets it (Amazon Linux 2023, then 2).
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

# Files that belong to an earlier root volume fit another image, so they are removed.
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
