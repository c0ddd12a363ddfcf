"""`make charts` on a real git and a real helm: what is pinned comes, whole, once, and nothing else counts."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.reading.loader import load_eks_cluster
from manifests.charts import files_of, load_charts
from manifests.gpu_operator import CHART as GPU_OPERATOR
from tests.manifests.helm_runs import helm
from tests.tools.json_documents import RunJson
from tests.tools.kubernetes.chart_upstream import (
    FOLDER,
    LEFT_OUT,
    PLUGIN,
    Run,
    Server,
    Upstream,
    packaged,
    unfinished,
    whole,
)
from tools.kubernetes import charts
from tools.kubernetes.kubectl import run_helm

REPOSITORY = Path(__file__).parents[3]
EKS = load_eks_cluster(REPOSITORY / "clusters" / "eks.yaml")
WAIT_SECONDS = 60


def test_the_pinned_commit_comes_and_helm_renders_it_without_a_network(
    make_charts: Run, cache: Path, table: Path
) -> None:
    printed = make_charts()
    rendered = run_helm(helm(), "template", "release", str(whole(cache, table)))
    assert rendered.returncode == 0, rendered.stderr
    texts = {
        document["metadata"]["name"]: document["data"]["text"]
        for document in yaml.safe_load_all(rendered.stdout)
    }
    assert texts == {"main": "first", "own": "own", PLUGIN: "of the plugin"}
    assert f"without {LEFT_OUT}: comes by itself" in printed
    assert "device-plugin 0.5.20 of the table; Chart.yaml has 0.5.10" in printed


def test_charts_as_json(upstream: Upstream, cache: Path, table: Path, run_json: RunJson) -> None:
    upstream.write_table(table)
    options = ("--table", str(table), "--cache", str(cache))
    result = run_json(charts.main, *options)["result"]
    assert result["folder"] == str(cache) and result["charts"] == list(load_charts(table))


def test_a_synthesis_fetches_what_is_missing(
    upstream: Upstream, cache: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.write_table(table)
    charts.bring_missing(EKS, table=table, cache=cache)
    assert whole(cache, table).is_dir()
    printed = capsys.readouterr()
    assert printed.out == "" and "content_sha256" in printed.err
    shutil.rmtree(upstream.repository)
    charts.bring_missing(EKS, table=table, cache=cache)
    assert capsys.readouterr().err == ""


def test_a_synthesis_without_a_network_does_not_wait(
    upstream: Upstream,
    cache: Path,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A refused connection, and a server that accepts one and never answers."""
    monkeypatch.setattr(charts, "PROBE_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            git = {
                **upstream.table()["main"]["git"],
                "repository": f"https://127.0.0.1:{port}/charts",
            }
            upstream.write_table(table, git=git)
            begin = time.monotonic()
            charts.bring_missing(EKS, table=table, cache=cache)
            assert time.monotonic() - begin < 5
    printed = capsys.readouterr()
    assert printed.out + printed.err == "" and not (cache / "main").exists()


def test_a_synthesis_reports_a_chart_that_is_not_the_pinned_one(
    upstream: Upstream, cache: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.write_table(table, git={**upstream.table()["main"]["git"], "content_sha256": "0" * 64})
    charts.bring_missing(EKS, table=table, cache=cache)
    assert f"the table has {'0' * 64}" in capsys.readouterr().err


def test_a_switch_of_the_upstream_chart_still_holds(
    make_charts: Run, cache: Path, table: Path
) -> None:
    """helm installs a packaged chart of a version that was not asked for whatever its condition says."""
    make_charts()
    rendered = run_helm(
        helm(),
        "template",
        "release",
        str(whole(cache, table)),
        "--set",
        "device-plugin.enabled=false",
    )
    assert {document["metadata"]["name"] for document in yaml.safe_load_all(rendered.stdout)} == {
        "main",
        "own",
    }


def test_nothing_else_of_the_repository_comes(make_charts: Run, cache: Path, table: Path) -> None:
    make_charts()
    assert files_of(whole(cache, table)).keys() == {
        "Chart.yaml",
        "values.yaml",
        "templates/text.yaml",
        "charts/own/Chart.yaml",
        "charts/own/values.yaml",
        "charts/own/templates/text.yaml",
        "charts/device-plugin-0.5.20.tgz",
    }


def test_a_moved_branch_changes_nothing(
    make_charts: Run, upstream: Upstream, cache: Path, table: Path
) -> None:
    upstream.move_branch()
    make_charts()
    assert yaml.safe_load((whole(cache, table) / "values.yaml").read_text()) == {"text": "first"}


def test_a_branch_cannot_be_pinned(make_charts: Run, upstream: Upstream) -> None:
    git = upstream.table()["main"]["git"]
    with pytest.raises(ValueError, match=r"main\.git\.commit: got 'main'"):
        make_charts(git={**git, "commit": "main"})


def test_the_second_run_sends_no_request(
    make_charts: Run, upstream: Upstream, server: Server
) -> None:
    make_charts()
    shutil.rmtree(upstream.repository)
    assert make_charts() == "main: there already, unchanged\n"
    assert server.requests == 1


@pytest.mark.parametrize("change", ["changed", "removed", "added", "linked"])
def test_a_change_in_the_cache_is_noticed_and_mended(
    make_charts: Run, cache: Path, table: Path, change: str
) -> None:
    make_charts()
    values = whole(cache, table) / "values.yaml"
    match change:
        case "changed":
            values.write_text("text: another\n")
        case "removed":
            values.unlink()
        case "added":
            values.with_name("more.yaml").write_text("")
        case "linked":
            elsewhere = cache / "elsewhere.yaml"
            values.rename(elsewhere)
            values.symlink_to(elsewhere)
    with pytest.raises(
        ValueError, match=r"(changed after it was fetched|not a plain file).*run make charts"
    ):
        whole(cache, table)
    make_charts()
    assert yaml.safe_load((whole(cache, table) / "values.yaml").read_text()) == {"text": "first"}


def test_a_new_pin_replaces_what_was_there(
    make_charts: Run, upstream: Upstream, cache: Path, table: Path
) -> None:
    make_charts()
    upstream.write_chart("third")
    newer = {**upstream.table()["main"]["git"], "commit": upstream.commit()}
    upstream.write_table(table, git=newer)
    with pytest.raises(ValueError, match="not the one in the table; run make charts"):
        whole(cache, table)
    make_charts(git=newer)
    assert yaml.safe_load((whole(cache, table) / "values.yaml").read_text()) == {"text": "third"}
    assert unfinished(cache) == []


def test_the_recorded_hash_of_the_commits_folder_must_hold(
    make_charts: Run, upstream: Upstream, cache: Path, table: Path
) -> None:
    """It is the hash of what sha256sum prints of the folder in the repository, without the archives."""
    subprocess.run(
        ["git", "checkout", "--quiet", upstream.pinned], cwd=upstream.repository, check=True
    )
    command = "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    folder = upstream.repository / FOLDER
    summed = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True
    )
    content = summed.stdout.split()[0]
    git = upstream.table()["main"]["git"]
    with pytest.raises(
        ValueError, match=f"has content_sha256 {content}, the table has 0{{64}}; it was not"
    ):
        make_charts(git={**git, "content_sha256": "0" * 64})
    assert not (cache / "main").exists()
    assert f"content_sha256 {content}" in make_charts(git={**git, "content_sha256": content})
    assert whole(cache, table).is_dir()


def test_a_stale_package_beside_a_folder_of_the_same_chart_is_removed(
    make_charts: Run, upstream: Upstream, cache: Path, table: Path
) -> None:
    """helm loads both, and which one it renders changes from run to run."""
    stale = upstream.repository / FOLDER / "charts" / "own-0.1.0.tgz"
    stale.write_bytes(packaged("own", "0.1.0", "stale"))
    printed = make_charts(git={**upstream.table()["main"]["git"], "commit": upstream.commit()})
    assert "without own-0.1.0.tgz" in printed
    assert not (whole(cache, table) / "charts" / stale.name).exists()
    assert (whole(cache, table) / "charts" / "own" / "Chart.yaml").exists()


def test_the_table_records_the_content_of_its_commit() -> None:
    assert all(chart.git.content_sha256 for chart in load_charts().values())


def test_hyperpods_chart_is_rendered_with_a_clusters_values_and_surprises_are_reported(
    make_charts: Run, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content hash was recorded at the first fetch of the pinned commit."""
    monkeypatch.setattr(charts, "HYPERPOD", "main")
    monkeypatch.chdir(REPOSITORY)
    template = upstream.repository / FOLDER / "templates" / "text.yaml"
    needed = '{{ (index .Values "health-monitoring-agent").region | required "a region" }}'
    template.write_text(template.read_text() + f"  region: {needed}\n")
    git = {**upstream.table()["main"]["git"], "commit": upstream.commit()}
    printed = make_charts(git=git)
    assert (
        "it installs objects that belong to none of its parts: main/templates/text.yaml\n"
        in printed
    )
    assert "WARNING: it installs own, which manifests/chart_values.py does not switch\n" in printed
    assert "WARNING: it installs device-plugin, which manifests" in printed


@pytest.mark.parametrize(
    ("rendered", "values", "remarks"),
    [
        ("# Source: main/charts/part/templates/a.yaml", {"part": {"enabled": True}}, []),
        ("", {"part": {"enabled": False}}, []),
        ("", {}, []),
        (
            "# Source: main/charts/part/templates/a.yaml",
            {"part": {"enabled": False}},
            ["part is switched off, which has no effect"],
        ),
        ("", {"part": {"enabled": True}}, ["part is switched on, which has no effect"]),
        (
            "# Source: main/charts/part/charts/more/templates/a.yaml",
            {},
            ["it installs part, which manifests/chart_values.py does not switch"],
        ),
    ],
)
def test_switches_without_effect(
    rendered: str, values: dict[str, Any], remarks: list[str], tmp_path: Path
) -> None:
    chart = {"name": "main", "dependencies": [{"name": "part", "condition": "part.enabled"}]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    assert charts.unexpected_parts(tmp_path / "Chart.yaml", values, rendered) == remarks


def test_line_ends_are_the_commits_whatever_git_is_set_to(
    make_charts: Run, cache: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text("[core]\n\tautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    make_charts()
    assert b"\r" not in (whole(cache, table) / "values.yaml").read_bytes()


def test_a_hook_of_another_repository_may_run_it(
    make_charts: Run, cache: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent/index")
    make_charts()
    assert whole(cache, table)


def test_a_dependency_in_the_folder_of_the_commit_needs_no_archive(tmp_path: Path) -> None:
    """NVIDIA's GPU Operator has one, whose entry names a registry nevertheless."""
    operator = load_charts()[GPU_OPERATOR]
    dependency = {"name": "discovery", "version": "0.18.3", "repository": "oci://registry.k8s.io/x"}
    chart_file = tmp_path / "Chart.yaml"
    chart_file.write_text(yaml.safe_dump({"name": "operator", "dependencies": [dependency]}))
    with pytest.raises(ValueError, match=r"depends on discovery 0\.18\.3"):
        charts.make_self_contained(chart_file, operator)
    (tmp_path / "charts" / "discovery").mkdir(parents=True)
    assert charts.make_self_contained(chart_file, operator) == []
    assert yaml.safe_load(chart_file.read_text())["dependencies"] == [dependency]


def test_only_clusters_with_divided_gpus_need_the_operator() -> None:
    assert set(charts.needed_charts(EKS)) == {charts.HYPERPOD}
    group = EKS.instance_groups[-1].model_copy(update={"mig_profile": "1g.10gb"})
    divided = EKS.model_copy(update={"instance_groups": [*EKS.instance_groups, group]})
    assert set(charts.needed_charts(divided)) == {charts.HYPERPOD, GPU_OPERATOR}


def test_our_table_is_good_and_asks_for_https() -> None:
    for chart in load_charts().values():
        assert chart.git.repository.startswith("https://")
        assert all(archive.url.startswith("https://") for archive in chart.archives)
