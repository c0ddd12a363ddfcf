#!/usr/bin/env bash
# Sets up the EFA client of FSx for Lustre with FSx's own program, and mounts a mounted file system again over EFA.
# Usage: set_up_lustre_efa.sh URL SHA256 [MOUNT_POINT], where SHA256 is "unknown" until it is pinned. Status 0: Lustre
# uses EFA. Status 3: Lustre stays on TCP, standard error has the reason, and a mount is as it was before.
# Procedure: FSx for Lustre user guide, "Configuring EFA clients". Only tests set DESTDIR.
set -euo pipefail

readonly url="$1" sha256="$2" mount_point="${3:-}"
readonly root="${DESTDIR:-}" service=configure-efa-fsx-lustre-client.service
readonly module_options="${root}/etc/modprobe.d/modprobe.conf"
readonly order="${root}/etc/systemd/system/${service}.d/50-before-mounts.conf"
readonly stays_on_tcp=3 probe_mib=16 seconds_for_setup=600 seconds_for_download=120

stay_on_tcp() {
    printf 'Lustre stays on TCP: %s\n' "$*" >&2
    exit "${stays_on_tcp}"
}

# Prints the number of EFA interfaces that are up, and the messages that LNet has sent and received over them.
traffic() {
    lnetctl net show --net efa -v 2>/dev/null | awk '
        /nid: / { is_up = 0 }
        /status: up/ { is_up = 1; interfaces++ }
        /send_count:/ && is_up { sent += $2 }
        /recv_count:/ && is_up { received += $2 }
        END { print interfaces + 0, sent + 0, received + 0 }'
}

has_interfaces() {
    [[ "$(traffic)" != 0\ * ]]
}

# Lustre's modules read their options when they are loaded, and hold interfaces until they are unloaded.
unload_modules() {
    [[ ! -e "${root}/sys/module/libcfs" ]] || lustre_rmmod
}

# Leaves modules and services as they were, so that the next boot does not bring half of EFA.
undo() {
    systemctl disable --now --quiet "${service}" || true
    rm --force "${order}"
    if [[ -e "${folder}/modprobe.conf" ]]; then
        cp "${folder}/modprobe.conf" "${module_options}"
    else
        rm --force "${module_options}"
    fi
    unload_modules || true
}

# LNet falls back to TCP without an error, so only its counters show the network that carries a file.
verify() {
    has_interfaces || stay_on_tcp "LNet has no EFA interface that is up (lnetctl net show)"
    if [[ -n "${mount_point}" ]]; then
        local interfaces sent received sent_after received_after probe
        read -r interfaces sent received <<<"$(traffic)"
        probe="$(mktemp "${mount_point}/.efa-probe-XXXXXX")"
        if ! head --bytes="${probe_mib}M" /dev/zero >"${probe}" || ! sync "${probe}"; then
            rm --force "${probe}"
            stay_on_tcp "${mount_point} took no file of ${probe_mib} MiB"
        fi
        rm --force "${probe}"
        read -r interfaces sent_after received_after <<<"$(traffic)"
        ((sent_after > sent && received_after > received)) ||
            stay_on_tcp "a file of ${probe_mib} MiB went over another network (lnetctl net show -v)"
    fi
    echo "Lustre uses EFA: ${interfaces:-$(traffic | cut --delimiter=' ' --fields=1)} interfaces"
}

unpack() {
    curl --fail --silent --show-error --location --retry 4 --max-time "${seconds_for_download}" --output client.zip \
        "${url}" || stay_on_tcp "${url} could not be downloaded"
    if ! sha256sum --check --status <<<"${sha256}  client.zip"; then
        stay_on_tcp "${url} has another SHA-256 than the pinned one: $(sha256sum client.zip | cut --delimiter=' ' --fields=1)"
    fi
    python3 -m zipfile --extract client.zip . || stay_on_tcp "${url} is no zip archive"
    setup="$(find . -name setup.sh | head --lines=1)"
    [[ -n "${setup}" ]] || stay_on_tcp "${url} has no setup.sh"
}

if has_interfaces; then
    verify
    exit 0
fi
compgen -G "${root}/sys/class/infiniband/*" >/dev/null || stay_on_tcp "this node has no EFA adapter"
[[ "${sha256}" != unknown ]] || stay_on_tcp "the checksum of FSx's EFA client is not known yet (docs/account-checks.md)"
modinfo kefalnd >/dev/null 2>&1 || stay_on_tcp "the Lustre client of this image has no module for EFA (kefalnd)"
folder="$(mktemp --directory)"
readonly folder
trap 'rm --recursive --force "${folder}"' EXIT
cd "${folder}"
unpack
source=""
if [[ -n "${mount_point}" ]]; then
    source="$(findmnt --noheadings --output SOURCE --types lustre --mountpoint "${mount_point}" | tail --lines=1)"
    # FSx's program loads LNet's modules again, which a mounted file system holds.
    [[ -z "${source}" ]] || umount "${mount_point}" || stay_on_tcp "${mount_point} is in use"
fi
[[ ! -e "${module_options}" ]] || cp "${module_options}" modprobe.conf
reason="lustre_rmmod could not unload Lustre's modules"
if unload_modules; then
    # An enabled service makes setup.sh wait for a reboot.
    systemctl disable --now --quiet "${service}" 2>/dev/null || true
    # FSx's service has no order: without one, a mount before it stays on TCP after a reboot.
    install -D --mode=0644 /dev/stdin "${order}" <<<'[Unit]
Wants=remote-fs-pre.target
Before=remote-fs-pre.target kubelet.service'
    (cd "$(dirname "${setup}")" && timeout "${seconds_for_setup}" bash ./setup.sh) || status="$?"
    reason="FSx's setup.sh ended with status ${status:-0} and no EFA interface is up"
    # The status is no proof: systemd may report the start of the service as canceled although it ran.
    has_interfaces || undo
fi
[[ -z "${source}" ]] || mount --types lustre --options relatime,flock "${source}" "${mount_point}"
has_interfaces || stay_on_tcp "${reason}; see the lines above"
echo "set up the EFA client"
verify
