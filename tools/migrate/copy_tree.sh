#!/usr/bin/env bash
# Copy the files of another cluster into a folder of this one with rsync, or compare both, as root.
# Arguments: copy, compare or compare-contents; kind of the source's file system: lustre or nfs; its device; the folder
# below it; the target; a mark; and folders below the source that are left out.
#
# Lines that begin with the mark are facts: a name, and a value. Every run may be interrupted at any time, and run again.
set -euo pipefail
action="$1" kind="$2" device="$3" below="$4" target="${5%/}" mark="$6"
shift 6
export LC_ALL=C
most_shown=20

fail() {
    echo "error: $1" >&2
    exit 2
}
fact() { echo "${mark}$1${mark}$2"; }

command -v rsync >/dev/null || fail "rsync is missing on ${HOSTNAME}: run \`sudo apt-get install rsync\` there"
[[ -d "${target}" ]] || fail "${target} is no folder of ${HOSTNAME}"
# A run continues if its session breaks. A second one must not begin beside it.
exec 9>"/run/lock/migrate-$(cksum <<<"${target}" | cut --delimiter=' ' --fields=1)"
flock --nonblock 9 || fail "a copy into ${target} is running on ${HOSTNAME}; run this again when it has ended"

# A killed run leaves its mount.
for old in "${TMPDIR:-/tmp}"/migrate-source.*; do
    umount "${old}" 2>/dev/null || true
    rmdir "${old}" 2>/dev/null || true
done
point="$(mktemp --directory --tmpdir migrate-source.XXXXXX)"
found="$(mktemp)"
trap 'umount "${point}" && rmdir "${point}"; rm --force "${found}"' EXIT
case "${kind}" in
    lustre) options=ro,noatime,flock ;;
    nfs) options=ro,nfsvers=4.2 ;;
    *) fail "file system: got ${kind}; allowed are lustre and nfs" ;;
esac
timeout 60 mount --types "${kind}" --options "${options}" "${device}" "${point}" ||
    fail "${device} cannot be mounted on ${HOSTNAME}: route and security groups must admit this node (docs/migrate.md)"
source="${point}${below:+/${below}}"
[[ -d "${source}" ]] || fail "${device} has no folder ${below}"

# Unfinished files are here, and never below their own names.
unfinished=".migrate-unfinished"
rules=(--filter='-x! user.*' --exclude="/${unfinished}/")
for folder in "$@"; do
    rules+=(--exclude="/${folder#/}/")
done
# Owners by number, because names may differ. Of extended attributes only those of users, because others belong to
# the file system.
kept=(--archive --hard-links --acls --xattrs --sparse --numeric-ids --one-file-system)

if [[ "${action}" == copy ]]; then
    rm --recursive --force "${target:?}/${unfinished}"
    mkdir --mode=700 "${target}/${unfinished}"
    # A file that was changed here since its copy is newer, and stays.
    status=0
    printed="$(nice rsync "${kept[@]}" "${rules[@]}" --update --temp-dir="${target}/${unfinished}" --stats \
        --no-human-readable "${source}/" "${target}/")" || status=$?
    rm --recursive --force "${target:?}/${unfinished}"
    touch --reference="${source}" "${target}"
    # 24: files vanished while it ran, because users work there.
    ((status == 0 || status == 24)) || fail "rsync ended with ${status}; run this again to continue"
    fact copied "$(sed --quiet 's/^Number of regular files transferred: //p' <<<"${printed}")"
    fact bytes "$(sed --quiet 's/^Total transferred file size: \([0-9]*\) bytes/\1/p' <<<"${printed}")"
    exit 0
fi

# What another copy would change, or all differences. New files change the times of folders here.
how=(--update)
[[ "${action}" == compare-contents ]] && how=(--checksum)
nice rsync "${kept[@]}" "${rules[@]}" "${how[@]}" --omit-dir-times --dry-run --delete --itemize-changes --stats --no-human-readable \
    "${source}/" "${target}/" >"${found}" || (($? == 24))
# Changes begin with two letters, and other lines are statistics.
change='^[<>ch.][fdLDS]'
fact entries "$(sed --quiet 's/^Number of files: \([0-9]*\).*/\1/p' "${found}")"
fact different "$(grep --count "${change}" "${found}" || true)"
fact added "$(grep --count '^\*deleting' "${found}" || true)"
while read -r line; do
    fact difference "${line}"
done < <(awk -v change="${change}" -v most="${most_shown}" '$0 ~ change && count++ < most' "${found}")
