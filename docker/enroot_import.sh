#!/usr/bin/env bash
# The training image as a squashfs file for pyxis, on the shared file system:
#   enroot_import.sh <account>.dkr.ecr.<region>.amazonaws.com/<repository>:<tag>@sha256:<digest> FILE
# Run as root on a worker, which has the disk and the cores; `make image TARGET=slurm` does. As root, because only root
# reaches the node's credentials. FILE is there whole or not at all, and left alone if it is there.
set -euo pipefail
umask 022

readonly host='([0-9]{12}\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?)'
readonly form="^${host}/([a-z0-9._/-]+):([A-Za-z0-9._-]+)@sha256:([0-9a-f]{64})\$"
readonly abandoned_minutes=120 # an import's time limit is half of that

fail() {
    echo "error: $*" >&2
    exit 1
}

main() {
    local reference="${1:-}" file="${2:-}"
    [[ "${reference}" =~ ${form} ]] || fail "got '${reference}'; it must be <account>.dkr.ecr.<region>" \
        ".amazonaws.com/<repository>:<tag>@sha256:<64 hex digits>, as make push prints it"
    local registry="${BASH_REMATCH[1]}" region="${BASH_REMATCH[2]}" repository="${BASH_REMATCH[4]}"
    local tag="${BASH_REMATCH[5]}" digest="${BASH_REMATCH[6]}"
    [[ "${file}" == /*/*.sqsh ]] || fail "got '${file}'; the file must be a path like /fsx/images/<name>.sqsh"
    local folder="${file%/*}"
    if [[ -s "${file}" ]]; then
        echo "${file} is there already"
        return
    fi
    local program
    for program in aws enroot unsquashfs; do
        command -v "${program}" >/dev/null || fail "${program} is not on ${HOSTNAME}; run it on a worker"
    done
    require_mounted "${folder}"
    mkdir -p "${folder}" || fail "cannot write to ${folder} on ${HOSTNAME}; $(room "${folder%/*}")"
    find "${folder}" -maxdepth 1 -name '.partial-*.sqsh' -mmin "+${abandoned_minutes}" -delete

    # enroot takes a tag, its older releases no digest. Tags are never moved, so the two agree for good.
    local found
    found="$(aws ecr batch-get-image --region "${region}" --registry-id "${registry%%.*}" \
        --repository-name "${repository}" --image-ids "imageTag=${tag}" \
        --query 'images[0].imageId.imageDigest' --output text)" ||
        fail "the registry does not answer; only root has the node's credentials: sudo, and see above"
    [[ "${found}" != None ]] || fail "${repository}:${tag} is not in the registry ${registry}; make push"
    [[ "${found}" == "sha256:${digest}" ]] || fail "${repository}:${tag} is ${found}, not sha256:${digest};" \
        "take the reference that make push prints"

    private="$(mktemp --directory)"
    partial="${folder}/.partial-${digest:0:12}-${HOSTNAME}-$$.sqsh"
    trap 'rm -rf "${private}" "${partial}"' EXIT
    echo "${HOSTNAME} imports ${repository}:${tag}; $(room "${folder}")"
    import_image "docker://AWS@${registry}#${repository}:${tag}" "${registry}" "${region}"
    verify "${tag}"
    chmod 0644 "${partial}"
    sync "${partial}"
    mv --no-target-directory "${partial}" "${file}"
    echo "$(du --human-readable "${file}" | cut --fields=1) in ${file}"
}

# Where nothing is mounted, gigabytes would go to the node's own root volume, and no other node would see them.
require_mounted() {
    local there="$1"
    while [[ ! -e "${there}" ]]; do there="$(dirname "${there}")"; done
    [[ "$(findmnt --noheadings --output TARGET --target "${there}")" != / ]] ||
        fail "$1 is on the root volume of ${HOSTNAME}: no shared file system is mounted there;" \
            "findmnt, and make logs NODE=${HOSTNAME}"
}

room() {
    echo "free in $1: $(df --human-readable --output=avail "$1" | tail --lines=1 | tr --delete ' ')"
}

# The token, good for 12 hours, stands in a file of root's own for as long as the import takes.
import_image() {
    local token
    token="$(aws ecr get-login-password --region "$3")" || fail "no token for the registry; see above"
    (umask 077 && printf 'machine %s login AWS password %s\n' "$2" "${token}" >"${private}/.credentials")
    ENROOT_CONFIG_PATH="${private}" enroot import --arch x86_64 --output "${partial}" "$1" ||
        fail "enroot could not import $1, nothing was kept; its last lines say why. $(room "${partial%/*}");" \
            "layers are unpacked below ENROOT_TEMP_PATH of /etc/enroot/enroot.conf on ${HOSTNAME}"
}

# Whole and the right one: its tables can be read, and the image says that it is of this commit.
verify() {
    unsquashfs -cat "${partial}" etc/environment >"${private}/environment" 2>"${private}/message" ||
        fail "the file cannot be read back, nothing was kept: $(<"${private}/message"); $(room "${partial%/*}")"
    grep --quiet --line-regexp --fixed-strings "GIT_SHA=$1" "${private}/environment" ||
        fail "the image does not say that it is $1; nothing was kept"
}

# Not from standard input, which may be this script.
main "$@" </dev/null
