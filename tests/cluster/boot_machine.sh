#!/usr/bin/env bash
# Becomes a machine's systemd, in namespaces that it was started in: boot_machine.sh FOLDER HOSTNAME LOWER CGROUP...
# FOLDER holds `upper` (the machine's own files), `work`, `root` (where all is put together) and `mounts`: lines of
# "bind SOURCE TARGET" or "tmpfs SIZE TARGET". LOWER are the layers below, CGROUP its cgroups, of cgroup2 and of the
# freezer.
set -euo pipefail

readonly folder="$1" hostname="$2" lower="$3" cgroup2="$4" freezer="$5"
readonly root="${folder}/root"

# The cgroup namespace is made here and not before, so that these cgroups are its roots and empty but for init.
if [[ "${6:-}" != namespaced ]]; then
    echo 0 >"${cgroup2}/cgroup.procs"
    echo 0 >"${freezer}/cgroup.procs"
    exec unshare --cgroup bash "$0" "$@" namespaced
fi

hostname "${hostname}"
mount -t overlay overlay -o "lowerdir=${lower},upperdir=${folder}/upper,workdir=${folder}/work" "${root}"
mount -t proc proc "${root}/proc"
mount -t sysfs -o ro sysfs "${root}/sys"
# The stand-in of a class of devices beside the kernel's own classes.
mount -t overlay -o "lowerdir=${root}/etc/test-cluster/sys-class:${root}/sys/class" overlay "${root}/sys/class"
mount -t cgroup2 cgroup2 "${root}/sys/fs/cgroup"
mount -t tmpfs -o mode=0755 tmpfs "${root}/dev"
mkdir "${root}/dev/pts" "${root}/dev/shm"
for device in null zero full random urandom tty; do
    touch "${root}/dev/${device}"
    mount --bind "/dev/${device}" "${root}/dev/${device}"
done
mount -t devpts -o newinstance,ptmxmode=0666 devpts "${root}/dev/pts"
ln --symbolic pts/ptmx "${root}/dev/ptmx"
ln --symbolic /proc/self/fd "${root}/dev/fd"
mount -t tmpfs tmpfs "${root}/dev/shm"
mount -t tmpfs -o mode=0755 tmpfs "${root}/run"
mkdir --parents "${root}/run/cgroup/freezer"
mount -t cgroup -o freezer cgroup "${root}/run/cgroup/freezer"
mount -t tmpfs -o mode=1777 tmpfs "${root}/tmp"
while read -r type source target; do
    if [[ "${type}" == tmpfs ]]; then
        mkdir --parents "${root}${target}"
        mount -t tmpfs -o "mode=0755,size=${source}" tmpfs "${root}${target}"
    elif [[ -d "${source}" ]]; then
        mkdir --parents "${root}${target}"
        mount --bind "${source}" "${root}${target}"
    else
        mount --bind "${source}" "${root}${target}"
    fi
done <"${folder}/mounts"

cd "${root}"
mkdir .outside
pivot_root . .outside
umount --lazy .outside
rmdir .outside
exec env --ignore-environment container=test-cluster PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --log-target=console --log-level=notice </dev/null
