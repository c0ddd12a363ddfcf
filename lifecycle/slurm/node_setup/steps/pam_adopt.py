"""Allow ssh to a worker only to users with a job there, and make their sessions part of that job.

Root, ubuntu, members of sudo and the cluster file's administrators are always admitted. If the switch is off,
the step removes its changes.
"""

from pathlib import Path

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.slurm import configuration

SSHD = "/etc/pam.d/sshd"
ACCESS = "/etc/security/access-slurm-adopt.conf"
SESSION = "/etc/pam.d/slurm-adopt-session"
COMMON_SESSION = "/etc/pam.d/common-session"
MODULE = "pam_slurm_adopt.so"
# Folders in which PAM finds modules by name. OTHER_FOLDERS may have the module of Slurm's own installation.
PAM_FOLDERS = (
    "usr/lib/*-linux-gnu/security",
    "lib/*-linux-gnu/security",
    "lib/security",
    "usr/lib/security",
    "lib64/security",
)
OTHER_FOLDERS = ("opt/slurm/lib/security", "opt/slurm/lib64/security", "usr/local/lib/security")
ACCOUNT_INCLUDE = "@include common-account"
SESSION_INCLUDE = "@include common-session"
BEGIN = "# BEGIN node-setup: pam_slurm_adopt"
END = "# END node-setup: pam_slurm_adopt"
REPLACED = "# node-setup replaces: "
ALWAYS = ("root", "ubuntu", "(sudo)")
"""Users, and in parentheses groups, in the notation of access.conf."""
STRANGER = "nobody"
"""User without jobs. PAM has to refuse this user."""
# Any other answer of PAM means that the rules do not work.
ALLOWED = 0
"""PAM_SUCCESS."""
REFUSED = 6
"""PAM_PERM_DENIED."""


def apply(node: Node) -> None:
    """Adjust sshd's PAM rules to the switch, and verify which users they admit.

    Raises:
        SetupError: if Slurm or the image lacks something, or the rules do not work and were removed.
    """
    if not node.settings.pam_slurm_adopt:
        _take_back(node)
        return
    module = _find_module(node)
    _check_slurm(node)
    text = _read(node, SSHD)
    admins = [user.name for user in node.settings.users if user.admin]
    access = f"+:{' '.join([*ALWAYS, *admins])}:ALL\n-:ALL:ALL\n"
    node.install(ACCESS, "# Who may come without a job; see pam.d/sshd.\n" + access)
    # pam_systemd would move a session out of the job's processes.
    lines = [
        line for line in _read(node, COMMON_SESSION).splitlines() if "pam_systemd.so" not in line
    ]
    head = f"# {COMMON_SESSION} without pam_systemd; made by node-setup."
    node.install(SESSION, "\n".join([head, *lines]) + "\n")
    node.install(SSHD, with_adoption(without_adoption(text), module))
    _verify(node)


def with_adoption(text: str, module: str) -> str:
    """Return sshd's rules with the adoption as the last account rule, and sessions without logind.

    Raises:
        SetupError: if the rules do not have the form of Debian's and Ubuntu's.
    """
    lines = text.splitlines()
    for wanted in (ACCOUNT_INCLUDE, SESSION_INCLUDE):
        if wanted not in lines:
            raise SetupError(
                f"{SSHD} has no line `{wanted}`",
                "it has been changed: restore it from the package openssh-server, or set "
                "node_setup.pam_slurm_adopt: false",
            )
    account = [
        BEGIN,
        # nodefgroup: groups are those in brackets, so that a user named sudo has no rights.
        f"account [success=1 default=ignore] pam_access.so nodefgroup accessfile={ACCESS}",
        # With the hyphen, a missing file, such as during an update, refuses no one.
        f"-account required {module}",
        END,
    ]
    position = max(
        index
        for index, line in enumerate(lines)
        if line.lstrip("-").startswith(("account", ACCOUNT_INCLUDE))
    )
    lines[position + 1 : position + 1] = account
    session = lines.index(SESSION_INCLUDE)
    lines[session : session + 1] = [
        BEGIN,
        f"{REPLACED}{SESSION_INCLUDE}",
        f"@include {Path(SESSION).name}",
        END,
    ]
    return "\n".join(lines) + "\n"


def without_adoption(text: str) -> str:
    """Return the rules without the changes of ``with_adoption``."""
    kept: list[str] = []
    ours = False
    for line in text.splitlines():
        if line in (BEGIN, END):
            ours = line == BEGIN
        elif not ours:
            kept.append(line)
        elif line.startswith(REPLACED):
            kept.append(line.removeprefix(REPLACED))
    return "\n".join(kept) + "\n"


def _take_back(node: Node) -> None:
    sshd = node.host.path(SSHD)
    if sshd.is_file() and BEGIN in (text := sshd.read_text()):
        node.install(SSHD, without_adoption(text))
    for path in (ACCESS, SESSION):
        node.remove(path)


def _find_module(node: Node) -> str:
    """Return the module's name if it is in a folder of PAM's, otherwise its path."""
    if any(any(node.host.root.glob(f"{folder}/{MODULE}")) for folder in PAM_FOLDERS):
        return MODULE
    for folder in OTHER_FOLDERS:
        if (node.host.root / folder / MODULE).is_file():
            return f"/{folder}/{MODULE}"
    raise SetupError(
        f"node_setup.pam_slurm_adopt is true, and {MODULE} is not on this node, in "
        f"{', '.join('/' + folder for folder in (*PAM_FOLDERS, *OTHER_FOLDERS))}",
        "it must be of the same version as Slurm: build it from contribs/pam_slurm_adopt of Slurm's source "
        "into an image of your own, or set node_setup.pam_slurm_adopt: false",
    )


def _check_slurm(node: Node) -> None:
    config = configuration(node.host)
    for name, value in {"PrologFlags": "contain", "ProctrackType": "proctrack/cgroup"}.items():
        got = config.get(name, "")
        if value not in got.lower().split(","):
            raise SetupError(
                f"node_setup.pam_slurm_adopt is true, and {name} of Slurm's configuration is "
                f"{got or 'not set'}, without {value}",
                f"add {name}={value} to slurm.conf on the controller and restart slurmctld and every "
                "slurmd, while no jobs run; or set node_setup.pam_slurm_adopt: false",
            )
    # sshd requires the folder, which does not exist before the first login if systemd listens for sshd. Older
    # versions require a connection too.
    node.host.path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
    connection = f"user={STRANGER},host=localhost,addr=127.0.0.1"
    if "usepam yes" not in node.host.run("sshd", "-T", "-C", connection).splitlines():
        raise SetupError(
            "sshd does not use PAM, so all users can log in",
            "set `UsePAM yes` in /etc/ssh/sshd_config",
        )


def _read(node: Node, path: str) -> str:
    try:
        return node.host.path(path).read_text()
    except OSError as error:
        raise SetupError(
            f"{path} cannot be read: {error.strerror}",
            "reinstall openssh-server and libpam-runtime",
        ) from None


def _verify(node: Node) -> None:
    """Query PAM for three users, and remove rules that refuse administrators or admit everyone."""
    for user, wanted in (("root", ALLOWED), ("ubuntu", ALLOWED), (STRANGER, REFUSED)):
        if node.host.try_run("getent", "passwd", user).status != 0:
            continue
        answer = node.host.try_run("python3", "-I", node.files / "pam_account.py", "sshd", user)
        if answer.status != wanted:
            _take_back(node)
            expected = "admit" if wanted == ALLOWED else "refuse"
            raise SetupError(
                f"with {MODULE} PAM must {expected} {user}, but answers: {answer.said} ({answer.status}); "
                "the rules have been removed",
                "see /var/log/auth.log on the node, or set node_setup.pam_slurm_adopt: false",
            )
