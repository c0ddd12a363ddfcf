#!/bin/bash
# Quick checks of a worker. Prints its findings, and ends with 86 if a check fails twice in a row. A check that
# cannot be made, or does not end in time, is not a fault.
# shellcheck disable=SC2329 # The checks are called by name.
set -uo pipefail

readonly lustre="@LUSTRE@" num_gpus="@NUM_GPUS@" num_neuron_devices="@NUM_NEURON_DEVICES@"
readonly seconds_to_answer=4 seconds_between_looks=2
readonly least_mib_on_root=512
# Xid errors that require a reset or another machine (NVIDIA's Xid catalogue): double-bit ECC error, no row left
# to remap, GPU off the bus, uncontained ECC error.
readonly fatal_xids='48|64|79|95'
# Xids from before the time of this file do not count. Touch it after a reset of the GPUs.
readonly gpus_were_reset=/run/gpus-were-reset
readonly status_of_a_fault=86

# A check returns 0 if all is well. It prints the fault and returns 1, or returns another status if it cannot be made.

lustre_is_mounted() {
    findmnt --noheadings --output FSTYPE --mountpoint "${lustre}" >/dev/null && return 0
    (($? == 1)) || return 2
    echo "${lustre} is not mounted"
    return 1
}

# A process that waits for a server cannot be killed. The check does not wait for it.
lustre_answers() {
    local tenths process
    stat --file-system "${lustre}" >/dev/null 2>&1 </dev/null &
    process=$!
    for ((tenths = 0; tenths < seconds_to_answer * 10; tenths++)); do
        kill -0 "${process}" 2>/dev/null || break
        sleep 0.1
    done
    if kill -KILL "${process}" 2>/dev/null; then
        # Every node sees a server that pauses, for example in its maintenance window. This must not drain all nodes.
        echo "${lustre} has not answered for ${seconds_to_answer} s: the server's fault, not this node's"
        return 2
    fi
    wait "${process}"
    case $? in 0) return 0 ;; 126 | 127 | 137) return 2 ;; esac
    echo "${lustre} is mounted and cannot be read"
    return 1
}

root_volume_has_room() {
    local free_mib
    free_mib="$(df --output=avail --block-size=1M / | tail --lines=1 | tr --delete ' ')" || return 2
    [[ "${free_mib}" =~ ^[0-9]+$ ]] || return 2
    ((free_mib < least_mib_on_root)) || return 0
    echo "the root volume has ${free_mib} MiB left; logs and jobs need ${least_mib_on_root}"
    return 1
}

gpus_are_there() {
    local listed count
    listed="$(timeout --signal=KILL "${seconds_to_answer}" nvidia-smi --list-gpus 2>&1)"
    # If it fails, it has listed the GPUs that it can reach. These statuses mean that it is missing or was killed.
    case $? in 124 | 126 | 127 | 137) return 2 ;; esac
    count="$(grep --count '^GPU [0-9]' <<<"${listed}")"
    ((count < num_gpus)) || return 0
    echo "nvidia-smi lists ${count} GPUs of ${num_gpus}"
    return 1
}

# The driver creates a file for each device that it finds.
neuron_devices_are_there() {
    local found=(/dev/neuron[0-9]*)
    [[ -e "${found[0]}" ]] || found=()
    ((${#found[@]} < num_neuron_devices)) || return 0
    echo "/dev has ${#found[@]} Neuron devices of ${num_neuron_devices}"
    return 1
}

no_fatal_xid() {
    local since=0 kernel xid
    [[ ! -e "${gpus_were_reset}" ]] || since="$(stat --format=%Y "${gpus_were_reset}")" || return 2
    # Only the kernel's own lines count, because users can write other lines of the journal.
    kernel="$(timeout --signal=KILL "${seconds_to_answer}" \
        journalctl --dmesg --boot --since="@${since}" --no-pager --quiet --output=cat)" || return 2
    xid="$(grep --extended-regexp --max-count=1 "NVRM: Xid \(.*\): (${fatal_xids})," <<<"${kernel}")" ||
        return 0
    echo "the kernel has logged ${xid:0:100}; after a reset of the GPU: touch ${gpus_were_reset}"
    return 1
}

checks=(lustre_is_mounted lustre_answers root_volume_has_room)
((num_gpus == 0)) || checks+=(gpus_are_there no_fatal_xid)
((num_neuron_devices == 0)) || checks+=(neuron_devices_are_there)
for check in "${checks[@]}"; do
    for look in first second; do
        fault="$("${check}")"
        case $? in
        0) break ;;
        1)
            if [[ "${look}" == second ]]; then
                echo "${fault}"
                exit "${status_of_a_fault}"
            fi
            sleep "${seconds_between_looks}"
            ;;
        *)
            echo "${fault:-${check} could not be checked}"
            break
            ;;
        esac
    done
done
exit 0
