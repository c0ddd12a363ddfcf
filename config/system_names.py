"""Names of users and groups that nodes have, and that a person's may not be."""

from __future__ import annotations

# Debian's package base-passwd.
_BASE = frozenset(
    {
        *("adm", "audio", "backup", "bin", "cdrom", "daemon", "dialout", "dip", "disk", "fax", "floppy"),
        *("games", "gnats", "irc", "kmem", "list", "lp", "mail", "man", "news", "nobody", "nogroup"),
        *("operator", "plugdev", "proxy", "root", "sasl", "shadow", "src", "staff", "sudo", "sync", "sys"),
        *("tape", "tty", "users", "utmp", "uucp", "video", "voice", "www-data"),
    }
)
# What Ubuntu's server image and its packages add, with users by the same names as their services.
_UBUNTU = frozenset(
    {
        *("admin", "avahi", "chrony", "colord", "crontab", "dhcpcd", "dnsmasq", "fwupd-refresh", "input"),
        *("kvm", "landscape", "lxd", "messagebus", "netdev", "ntp", "polkitd", "pollinate", "postfix"),
        *("rdma", "render", "rtkit", "sgx", "ssh", "sshd", "ssl-cert", "sssd", "statd", "syslog", "tcpdump"),
        *("tss", "ubuntu", "usbmux", "uuidd", "wheel"),
    }
)
# Slurm and what belongs to it, containers, monitoring, AWS's agents and images.
_CLUSTER = frozenset(
    {
        *("aoc", "containerd", "cwagent", "dcgm", "docker", "ec2-instance-connect", "ec2-user", "enroot"),
        *("grafana", "mariadb", "munge", "mysql", "node-exporter", "node_exporter", "nvidia-persistenced"),
        *("prometheus", "sagemaker", "sagemaker-user", "slurm", "slurmdbd", "slurmrestd", "ssm-user"),
    }
)

SYSTEM_NAMES = _BASE | _UBUNTU | _CLUSTER
"""Beside these all that begin with ``systemd-``; an underscore, as in ``_apt``, begins no person's name."""
