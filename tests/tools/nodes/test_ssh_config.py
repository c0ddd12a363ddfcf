import stat
import subprocess
from pathlib import Path

from tools.nodes.connect import host_block, with_block, write_block

START = [
    "aws",
    "ssm",
    "start-session",
    "--target",
    "sagemaker-cluster:abc_login-i-0123",
    "--region",
    "us-west-2",
]
OTHERS = "Host *\n    Compression yes\n    User somebody\n"


def block(instance_id: str = "i-0123") -> str:
    return host_block(host="esm2", user="ubuntu", instance_id=instance_id, start_session=START)


def test_ssh_itself_reads_the_block(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(OTHERS)
    assert write_block(config, host="esm2", block=block())
    ssh = subprocess.run(
        ["ssh", "-G", "-F", config, "esm2"], capture_output=True, text=True, check=True
    )
    settings = dict(line.split(" ", 1) for line in ssh.stdout.splitlines() if " " in line)
    assert settings["user"] == "ubuntu"
    assert settings["compression"] == "yes"
    assert settings["hostkeyalias"] == "i-0123"
    assert settings["proxycommand"].split() == [
        *START,
        "--document-name",
        "AWS-StartSSHSession",
        "--parameters",
        "portNumber=%p",
    ]


def test_the_rest_of_the_file_stays_and_the_former_one_is_kept(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(OTHERS)
    config.chmod(0o640)
    write_block(config, host="esm2", block=block())
    assert config.read_text().endswith(f"\n\n{OTHERS}")
    assert (tmp_path / "config.bak").read_text() == OTHERS
    assert stat.S_IMODE(config.stat().st_mode) == 0o640


def test_the_same_block_twice_changes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "new" / "config"
    assert write_block(config, host="esm2", block=block())
    once = config.read_bytes()
    assert not write_block(config, host="esm2", block=block())
    assert config.read_bytes() == once
    assert not (tmp_path / "new" / "config.bak").exists()


def test_a_replaced_node_takes_the_place_of_its_block() -> None:
    before = with_block(OTHERS, host="esm2", block=block("i-old")) + "\nHost last\n    User me\n"
    after = with_block(before, host="esm2", block=block("i-new"))
    assert after == before.replace("i-old", "i-new")


def test_blocks_of_hosts_with_similar_names_are_apart() -> None:
    text = with_block("", host="esm2-p5", block="Host esm2-p5")
    text = with_block(text, host="esm2", block="Host esm2")
    text = with_block(text, host="esm2", block="Host esm2\n    User \\1")
    assert text.count(">>> hyperpod") == 2
    assert "Host esm2-p5\n" in text
    assert "User \\1" in text


def test_a_linked_configuration_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles"
    real.write_text(OTHERS)
    link = tmp_path / "config"
    link.symlink_to(real)
    write_block(link, host="esm2", block=block())
    assert link.is_symlink()
    assert "Host esm2" in real.read_text()
