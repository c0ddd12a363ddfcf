"""Settings of pip reach uv as environment variables."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

# Not imported as `docker.pip_settings`: site-packages has another package of the name `docker`.
pip_settings = SimpleNamespace(
    **runpy.run_path(str(Path(__file__).parents[2] / "docker/pip_settings.py"))
)


def variables(**settings: str) -> dict[str, str]:
    found: dict[str, str] = pip_settings.uv_variables(
        {name.replace("_", "-"): settings[name] for name in settings}, {}
    )
    return found


def test_later_sections_replace_earlier_ones() -> None:
    listing = """:env:.find-links='/from/variable'
global.cert='/from/file.pem'
global.find-links='/from/file'
global.index-url='https://a.example/simple'
install.index-url='https://b.example/simple'
download.index-url='https://c.example/simple'
:env:.cert=''
"""
    assert pip_settings.parse(listing) == {
        "cert": "/from/file.pem",
        "find-links": "/from/variable",
        "index-url": "https://b.example/simple",
    }


def test_pips_own_listing_is_read(tmp_path: Path) -> None:
    """Lists in files take several lines."""
    (tmp_path / "pip.conf").write_text(
        "[global]\nextra-index-url =\n  https://a.example\n  https://b.example\n"
    )
    environment = {
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "PIP_TRUSTED_HOST": "a.example b.example",
    }
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = pip_settings.uv_variables(pip_settings.parse(done.stdout), {})
    assert found["UV_INDEX"] == "https://a.example https://b.example"
    assert found["UV_INSECURE_HOST"] == "a.example b.example"


def test_places_of_packages() -> None:
    found = variables(
        index_url="https://main.example/simple",
        extra_index_url="https://a.example/simple\nfile:///b/simple",
        find_links="/wheels ~/wheels",
        constraint="/c.txt",
    )
    assert found["UV_DEFAULT_INDEX"] == "https://main.example/simple"
    assert found["UV_INDEX"] == "https://a.example/simple file:///b/simple"
    assert found["UV_FIND_LINKS"] == f"/wheels,{Path.home()}/wheels"
    assert found["UV_CONSTRAINT"] == "/c.txt"
    assert found["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_the_way_to_the_index(tmp_path: Path) -> None:
    found = variables(cert="/own.pem", proxy="http://proxy.example:3128", default_timeout="180")
    assert found["SSL_CERT_FILE"] == "/own.pem" and "UV_SYSTEM_CERTS" not in found
    assert found["HTTPS_PROXY"] == found["HTTP_PROXY"] == "http://proxy.example:3128"
    assert found["UV_HTTP_TIMEOUT"] == "180"
    assert variables(cert=str(tmp_path))["SSL_CERT_DIR"] == str(tmp_path)
    assert variables()["UV_SYSTEM_CERTS"] == "true"


@pytest.mark.parametrize(
    ("settings", "compiles"),
    [
        ({}, "true"),
        ({"no_compile": "no"}, "false"),
        ({"compile": "0"}, "false"),
        ({"compile": "1"}, "true"),
    ],
)
def test_bytecode_is_compiled_when_pip_would(settings: dict[str, str], compiles: str) -> None:
    assert variables(**settings)["UV_COMPILE_BYTECODE"] == compiles


def test_no_index_is_an_option() -> None:
    assert pip_settings.uv_arguments({"no-index": "1"}) == ["--no-index"]
    assert pip_settings.uv_arguments({"no-index": "false"}) == []
    assert pip_settings.uv_arguments({}) == []


def test_options_of_the_call_come_before_settings() -> None:
    assert pip_settings.uv_arguments({"no-index": "1"}, ["--no-index"]) == []
    settings = {"only-binary": ":all:", "pre": "1"}
    assert pip_settings.uv_arguments(settings) == ["--pre", "--only-binary", ":all:"]
    assert pip_settings.uv_arguments(settings, ["--no-binary", ":all:"]) == ["--pre"]


def test_certificates_are_those_of_pip(tmp_path: Path) -> None:
    bundle = {"REQUESTS_CA_BUNDLE": "/etc/proxy.pem"}
    assert pip_settings.uv_variables({}, bundle)["SSL_CERT_FILE"] == "/etc/proxy.pem"
    assert pip_settings.uv_variables({"cert": "/ca.pem"}, bundle)["SSL_CERT_FILE"] == "/ca.pem"
    assert "SSL_CERT_FILE" not in pip_settings.uv_variables(
        {}, {**bundle, "SSL_CERT_FILE": "/own.pem"}
    )
    assert pip_settings.uv_variables({"cert": str(tmp_path)}, {})["SSL_CERT_DIR"] == str(tmp_path)
    in_home = pip_settings.uv_variables({"cert": "~/ca.pem", "client-cert": "~/cc.pem"}, {})
    assert in_home["SSL_CERT_FILE"] == os.path.expanduser("~/ca.pem")
    assert in_home["SSL_CLIENT_CERT"] == os.path.expanduser("~/cc.pem")
