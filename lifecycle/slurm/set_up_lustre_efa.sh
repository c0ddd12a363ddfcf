#!/usr/bin/env bash
# Sets up the EFA client of FSx for Lustre with FSx's own program, and mounts a mounted file system again over EFA.
# Usage: set_up_lustre_efa.sh URL SHA256 [MOUNT_POINT], where SHA256 is "unknown" until it is pinned. Status 0: Lustre
# uses EFA. Status 3: Lustre stays on TCP, and standard error says why; a mount is as it was before.
# Procedure: FSx for Lustre user guide, "Configuring EFA clients". DESTDIR is set by tests alone.
set -euo pipefail

readonly url="$1" sha256="$2" mount_point="${3:-}"
readonly stays_on_tcp=3 probe_mib=16 seconds_for_setup=600 seconds_for_download=120

stay_on_tcp() {
    printf 'Lustre stays on TCP: %s\n' "$*" >&2
    exit "${stays_on_tcp}"
}

num_interfaces() {
    lnetctl net show --net efa 2>/dev/null | grep --count 'nid: .*@efa' || true
}

# Messages that LNet has sent over EFA.
messages() {
    lnetctl net show --net efa -v 2>/dev/null | awk '/send_count:/ { sum += $2 } END { print sum + 0 }'
}

# LNet falls back to TCP without an error, so only its counters show the network that carries a file.
verify() {
    (($(num_interfaces) > 0)) || stay_on_tcp "FSx's program ended well, but LNet has no EFA interface (lnetctl net show)"
    if [[ -n "${mount_point}" ]]; then
        local before probe
        before="$(messages)"
        probe="$(mktemp "${mount_point}/.efa-probe-XXXXXX")"
        if ! head --bytes="${probe_mib}M" /dev/zero >"${probe}" || ! sync "${probe}"; then
            rm --force "${probe}"
            stay_on_tcp "${mount_point} took no file of ${probe_mib} MiB"
        fi
        rm --force "${probe}"
        (($(messages) > before)) || stay_on_tcp "a file of ${probe_mib} MiB went over another network (lnetctl net show -v)"
    fi
    echo "Lustre uses EFA: $(num_interfaces) interfaces"
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

if (($(num_interfaces) > 0)); then
    verify
    exit 0
fi
compgen -G "${DESTDIR:-}/sys/class/infiniband/*" >/dev/null || stay_on_tcp "this node has no EFA adapter"
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
status=0
(cd "$(dirname "${setup}")" && timeout "${seconds_for_setup}" bash ./setup.sh) || status="$?"
[[ -z "${source}" ]] || mount --types lustre --options relatime,flock "${source}" "${mount_point}"
[[ "${status}" == 0 ]] || stay_on_tcp "FSx's setup.sh ended with status ${status}; the lines above say why"
echo "set up the EFA client"
verify
