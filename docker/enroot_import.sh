#!/usr/bin/env bash
# The training image as a squashfs file for pyxis, on the shared file system, once per digest:
#   enroot_import.sh <account>.dkr.ecr.<region>.amazonaws.com/<repository>:<tag>@sha256:<digest> [FOLDER]
# Run as root on a worker, which has the disk and the cores, through the head node:
#   sudo srun --ntasks=1 --job-name=import-image bash -s -- <reference> <enroot_import.sh
# As root, because only root reaches the node's credentials. Prints the file's path, for --container-image.
set -euo pipefail
umask 022

readonly host='([0-9]{12}\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?)'
readonly form="^${host}/([a-z0-9._/-]+):([A-Za-z0-9._-]+)@sha256:([0-9a-f]{64})\$"

fail() {
    echo "enroot_import: $*" >&2
    exit 1
}

main() {
    local reference="${1:-}" folder="${2:-/fsx/images}"
    [[ "${reference}" =~ ${form} ]] || fail "got '${reference}'; it must be <account>.dkr.ecr.<region>" \
        ".amazonaws.com/<repository>:<tag>@sha256:<64 hex digits>, as make push prints it"
    local registry="${BASH_REMATCH[1]}" region="${BASH_REMATCH[2]}" repository="${BASH_REMATCH[4]}"
    local tag="${BASH_REMATCH[5]}" digest="${BASH_REMATCH[6]}"
    local target="${folder}/${repository//\//+}+${digest}.sqsh"
    if [[ -s "${target}" ]]; then
        echo "enroot_import: there already" >&2
        echo "${target}"
        return
    fi
    local program
    for program in aws enroot unsquashfs; do
        command -v "${program}" >/dev/null || fail "${program} is not on this node; run it on a worker"
    done
    mkdir -p "${folder}" || fail "cannot write to ${folder}; is the file system mounted? df -h ${folder%/*}"

    # enroot takes a tag, its older releases no digest. Tags are never moved, so the two agree for good.
    local found
    found="$(aws ecr batch-get-image --region "${region}" --registry-id "${registry%%.*}" \
        --repository-name "${repository}" --image-ids "imageTag=${tag}" \
        --query 'images[0].imageId.imageDigest' --output text)" ||
        fail "the registry does not answer; only root has the node's credentials: sudo, and see above"
    [[ "${found}" == "sha256:${digest}" ]] || fail "${repository}:${tag} is ${found}, not sha256:${digest}"

    private="$(mktemp --directory)"
    partial="${folder}/.partial-${digest:0:12}-${HOSTNAME}-$$.sqsh"
    trap 'rm -rf "${private}" "${partial}"' EXIT
    import_image "docker://AWS@${registry}#${repository}:${tag}" "${registry}" "${region}"
    verify "${tag}" "${folder}"
    chmod 0644 "${partial}"
    sync "${partial}"
    mv --no-target-directory "${partial}" "${target}"
    echo "${target}"
}

# The token, good for 12 hours, stands in a file of root's own for as long as the import takes.
import_image() {
    local token
    token="$(aws ecr get-login-password --region "$3")" || fail "no token for the registry; see above"
    (umask 077 && printf 'machine %s login AWS password %s\n' "$2" "${token}" >"${private}/.credentials")
    ENROOT_CONFIG_PATH="${private}" enroot import --arch x86_64 --output "${partial}" "$1" >&2 ||
        fail "enroot could not import $1; its last lines say why, and: df -h"
}

# Whole and the right one: its tables can be read, and the image says that it is of this commit.
verify() {
    unsquashfs -cat "${partial}" etc/environment >"${private}/environment" 2>"${private}/message" ||
        fail "the file cannot be read: $(<"${private}/message"); is there room? df -h $2"
    grep --quiet --line-regexp --fixed-strings "GIT_SHA=$1" "${private}/environment" ||
        fail "the image does not say that it is $1; nothing was kept"
}

# Not from standard input, which may be this script.
main "$@" </dev/null
