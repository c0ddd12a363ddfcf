# shellcheck shell=sh
# For sessions through Systems Manager (make connect). PAM shows no message of the day in their login shells.
if [ -t 1 ] && [ -z "${SSH_CONNECTION:-}${SUDO_USER:-}${SLURM_JOB_ID:-}" ]; then
    /etc/update-motd.d/99-cluster || true
fi
