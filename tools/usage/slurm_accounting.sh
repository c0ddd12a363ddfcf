#!/usr/bin/env bash
# Print the records of Slurm's accounting that overlap a period, one per line, and facts about them.
# Arguments: begin and end of the period in UTC, a mark that separates fields, the fields, Slurm's programs.
set -euo pipefail
since="$1" until="$2" mark="$3" fields="$4"
export PATH="$5:$PATH" TZ=UTC LC_ALL=C
unset SLURM_TIME_FORMAT

# A line that begins with the mark is a fact: its name, and its value.
echo "${mark}clock${mark}$(date +%s)"
echo "${mark}reader${mark}$(id --user --name)"
scontrol show config | sed --quiet "s/^AccountingStorageTRES *= */${mark}tracked${mark}/p"
{ sacctmgr --noheader show configuration 2>/dev/null || true; } |
    sed --quiet "s/^PrivateData *= */${mark}private${mark}/p"
# With duplicates, a job that was requeued or resized has a record for each of its allocations.
sacct --allusers --allocations --duplicates --noheader --noconvert --parsable2 --delimiter="$mark" --format="$fields" \
    --starttime="$since" --endtime="$until"
# After sacct, so that a job that starts between the two commands is in both.
squeue --all --array --noheader --states=all --format="${mark}queued${mark}%A"
