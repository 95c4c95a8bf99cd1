"""Configs of clusters: the shipped ones say every key, and a wrong one is answered with the key and the remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ips2_dask import BadInput, Resources
from ips2_dask.cli.main import main
from ips2_dask.clusters.config import MANAGERS, NOT_CLUSTERS, SECTIONS, Config, field_names, load, shipped
from ips2_dask.clusters.resources import config_of, settled

CONFIGS = [name for name in shipped() if name not in NOT_CLUSTERS]

SLURM = "manager: slurm\nworker: {memory: 4GiB}\n"
WRONG = {
    "no manager": ("workers: 2\n", "manager", "write manager: local"),
    "a manager that is none": ("manager: slrum\n", "manager", "write manager: slurm"),
    "a misspelt key": ("manager: local\nn_workers: 2\n", "n_workers", "write workers"),
    "a misspelt nested key": ("manager: local\nworker: {memroy: 4GiB}\n", "worker.memroy", "write worker.memory"),
    "a key of a section at the top": ("manager: local\nthreads: 2\n", "threads", "write worker.threads"),
    "a parameter of the method": ("manager: local\nn_neighbors: 5\n", "n_neighbors", "leave it out"),
    "a word where a number belongs": ("manager: local\nworkers: many\n", "workers", "write workers: 1"),
    "no workers": ("manager: local\nworkers: 0\n", "workers", "write workers: 1"),
    "true for a number": ("manager: local\nworkers: true\n", "workers", "write workers: 1"),
    "memory without a number": ("manager: local\nworker: {memory: lots}\n", "worker.memory", "a number with a unit"),
    "no memory for a job": ("manager: slurm\n", "worker.memory", "write worker: {memory: 4GiB}"),
    "a walltime without quotes": (SLURM + "slurm: {walltime: 1:30:00}\n", "slurm.walltime", 'write "01:00:00"'),
    "a margin that leaves no time": (
        SLURM + 'slurm: {walltime: "00:05:00", margin: 200}\n',
        "margin",
        "lower margin or raise walltime",
    ),
    "a text where a list belongs": (
        SLURM + "slurm: {directives: --exclusive}\n",
        "slurm.directives",
        'write it as ["..."',
    ),
    "a password": ("manager: ssh\nssh: {password: x}\n", "ssh.password", "SSH's agent"),
    "a key of AWS in the environment": (
        "manager: local\nworker: {environment: {AWS_SECRET_ACCESS_KEY: x}}\n",
        "worker.environment.AWS_SECRET_ACCESS_KEY",
        "~/.aws",
    ),
    "a password in a URL": ("manager: gateway\ngateway: {address: https://me:pw@host}\n", "gateway.address", "~/.aws"),
    "an address that is none": (
        "manager: scheduler\nscheduler: {address: host}\n",
        "scheduler.address",
        "tls://HOST:8786",
    ),
    "a number and a range of workers": (
        "manager: local\nworkers: 2\nadaptive: {maximum: 4}\n",
        "workers",
        "leave one of them out",
    ),
    "limits that are swapped": ("manager: local\nadaptive: {minimum: 5, maximum: 2}\n", "adaptive.minimum", "swap"),
    "a section that is a value": ("manager: local\nworker: 4\n", "worker", "two spaces"),
    "a key twice": ("manager: local\nworkers: 2\nworkers: 3\n", "stands twice", "mend that line"),
    "what is no YAML": ("manager: [local\n", "YAML", "mend that line"),
    "a list": ("- manager: local\n", "list", "cluster_configs"),
    "code": ("manager: !!python/object/apply:os.getcwd []\n", "YAML", "mend that line"),
    "a date that is none": ("manager: local\nworkers: 2001-99-99\n", "YAML", "mend that line"),
    "a number without digits": ("manager: local\nworkers: !!int x\n", "YAML", "mend that line"),
    "a number of too many digits": (f"manager: local\nworkers: {'1' * 5000}\n", "YAML", "mend that line"),
    "too deep a list": (f"manager: local\nworkers: {'[' * 1500}\n", "YAML", "mend that line"),
    "a mapping that is a list": ("manager: local\nworker: !!map [1]\n", "YAML", "mend that line"),
    "a manager that is a list": ("manager: [local]\n", "manager", "write manager: local"),
    "half a character": ('manager: local\nworker: {scratch: "\\ud800"}\n', "worker.scratch", "in quotes"),
    "a port beyond all ports": ("manager: local\nbind: {port: 70000}\n", "bind.port", "write port"),
    "two places to listen": ("manager: local\nbind: {host: 127.0.0.1, interface: lo}\n", "bind.host", "leave one"),
    "a key that the manager does nothing with": (
        "manager: gateway\nworker: {threads: 1, memory: 4GiB}\n",
        "worker.memory: found a key that manager gateway does nothing with",
        "leave it out",
    ),
    "another manager's section": ("manager: local\nslurm: {queue: a}\n", "slurm", "leave it out"),
}


@pytest.mark.parametrize(("content", "key", "remedy"), WRONG.values(), ids=WRONG)
def test_a_wrong_config_is_answered_with_the_key_and_the_remedy(
    content: str, key: str, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    assert main(["cluster", "check", str(path)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    before, _, after = said.partition("Remedy:")
    assert str(path) in before
    assert key in before
    assert remedy in after


def test_a_refused_credential_is_not_printed(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        load({"manager": "gateway", "gateway": {"address": "https://me:open-sesame@host"}})
    assert "open-sesame" not in str(refused.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shipped_config_says_every_key_with_a_comment_and_its_default(name: str) -> None:
    text = shipped()[name].read_text()
    content = yaml.safe_load(text)
    manager = content["manager"]
    config = load(name)
    assert settled(config).manager == manager == name
    said = set(content.get(manager) or {})
    assert said == set(field_names(MANAGERS[manager].section))
    for line in text.splitlines():
        if re.match(r"\s*\w+:", line) and not line.rstrip().endswith(":"):
            assert "#" in line, line
    for key, value in (content.get(manager) or {}).items():
        assert re.search(rf"^  {key}:.*#", text, re.MULTILINE), (key, value)
    comments = re.sub(r"\n\s*#", " ", text)
    for section, kind in {"": Config, **SECTIONS, manager: MANAGERS[manager].section}.items():
        for key in content if not section else content.get(section) or {}:
            if key in field_names(kind):
                block = re.search(rf"^\s*{key}:.*$", comments, re.MULTILINE)
                assert block is not None
                assert "default" in block[0] or "must be given" in block[0] or "nothing secret" in block[0], key


def test_the_local_config_says_every_common_key() -> None:
    content = yaml.safe_load(shipped()["local"].read_text())
    assert set(content) == {"manager", *field_names(Config), *SECTIONS} - {"driver"}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_shipped_config_passes_the_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name in ("slurm", "pbs", "lsf", "sge"):
        pytest.importorskip("dask_jobqueue")
    assert main(["cluster", "check", name]) == 0
    assert "every key and value is valid" in capsys.readouterr().out


def test_a_config_is_found_by_name_or_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("manager: local\nworkers: 3\n")
    assert load(path).workers == load(str(path)).workers == 3
    assert load("slurm") == load("slurm.yaml")
    with pytest.raises(BadInput, match="give slurm"):
        load("slrm")


def test_the_method_is_no_matter_of_a_config() -> None:
    from ips2_dask import Params  # noqa: PLC0415 - only here

    kinds = [Config, *SECTIONS.values(), *(manager.section for manager in MANAGERS.values())]
    words = {key for kind in kinds for key in field_names(kind)}
    assert not words & set(Params.__dataclass_fields__)


@pytest.mark.parametrize(
    ("bind", "allowed"),
    [({"host": "127.0.0.1"}, True), ({"interface": "lo"}, True), ({"host": "0.0.0.0"}, False), ({}, False)],
)
def test_a_port_beyond_loopback_needs_certificates_or_a_word(bind: dict[str, Any], allowed: bool) -> None:
    given = {"manager": "slurm", "worker": {"memory": "1GiB"}, "bind": bind}
    if allowed:
        assert not settled(given).insecure
        return
    with pytest.raises(BadInput, match="--insecure"):
        settled(given)
    assert settled(given, insecure=True).insecure
    assert settled({**given, "insecure": True}).insecure
    assert settled(given, tls="certificates").tls == "certificates"


def test_a_dashboard_beyond_loopback_needs_a_word_even_with_certificates() -> None:
    given = {"manager": "local", "bind": {"dashboard": "0.0.0.0:8787"}}
    with pytest.raises(BadInput, match=r"bind\.dashboard.*--insecure"):
        settled(given, tls="certificates")
    settled(given, insecure=True)


def test_an_option_wins_over_the_config() -> None:
    given = {"manager": "local", "adaptive": {"minimum": 1, "maximum": 4}}
    assert settled(given).adaptive is not None
    assert settled(given, workers=3).adaptive is None
    assert settled(given, workers=3).workers == 3


OF_WORKERS = "worker.memory worker.scratch worker.environment worker.preload worker.warm"
NOT_TAKEN = {
    "scheduler": f"workers adaptive insecure bind driver {OF_WORKERS}",
    "gateway": f"tls insecure bind driver {OF_WORKERS}",
    "ssh": "workers adaptive driver",
    "local": "driver",
    "kubernetes": "bind driver.walltime",
    "slurm": "",
    "pbs": "",
    "lsf": "",
    "sge": "",
}
VALUES: dict[str, Any] = {
    "workers": 2,
    "adaptive": {"maximum": 4},
    "insecure": True,
    "tls": "tls",
    "shared": "/tmp",
    "timeout": 60,
    "bind": {"port": 0},
    "driver": {"threads": 2},
    "driver.walltime": "01:00:00",
    "driver.memory": "2GiB",
    "worker.threads": 2,
    "worker.memory": "2GiB",
    "worker.scratch": "/tmp",
    "worker.environment": {"A": "1"},
    "worker.preload": ["math"],
    "worker.warm": True,
}


def content_with(manager: str, dotted: str) -> dict[str, Any]:
    """A config of a manager with one more key."""
    needs = manager in ("slurm", "pbs", "lsf", "sge", "kubernetes")
    content: dict[str, Any] = {"manager": manager} | ({"worker": {"memory": "4GiB"}} if needs else {})
    section, _, key = dotted.rpartition(".")
    if section:
        content.setdefault(section, {})[key] = VALUES[dotted]
    else:
        content[dotted] = VALUES[dotted]
    return content


@pytest.mark.parametrize("dotted", sorted(VALUES))
@pytest.mark.parametrize("manager", sorted(NOT_TAKEN))
def test_a_key_that_a_manager_does_nothing_with_is_refused_and_any_other_is_taken(manager: str, dotted: str) -> None:
    content = content_with(manager, dotted)
    if not {dotted, dotted.partition(".")[0]} & set(NOT_TAKEN[manager].split()):
        load(content)
        return
    with pytest.raises(BadInput, match=f"manager {manager} does nothing with") as caught:
        load(content)
    assert caught.value.thing.startswith(f"config: {dotted.partition('.')[0]}")
    assert "worker.threads" in caught.value.allowed
    nothing = dict.fromkeys(set(content) - {"manager", "worker", "insecure"})
    load({**content_with(manager, "worker.threads"), **nothing})  # null says nothing


@pytest.mark.parametrize(
    ("given", "thing"),
    [
        ({"cluster": "ssh", "n_workers": 3}, "n_workers"),
        ({"scheduler": "tcp://a:1", "n_workers": 3}, "n_workers"),
        ({"scheduler": "tcp://a:1", "insecure": True}, "insecure"),
        ({"cluster": "gateway", "tls": "x"}, "tls"),
        ({"scheduler": "tcp://a:1", "scratch": "/x"}, "scratch"),
        ({"cluster": "gateway", "scratch": "/x"}, "scratch"),
    ],
)
def test_what_is_asked_for_besides_a_config_is_used_or_refused(given: dict[str, Any], thing: str) -> None:
    with pytest.raises(BadInput, match="does something with") as caught:
        config_of(Resources(**given))
    assert caught.value.thing == {"n_workers": "workers"}.get(thing, thing)


def test_a_store_is_looked_at_by_a_worker_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "check", "local", "--store", "/tmp"]) == 2
    assert "without --start" in capsys.readouterr().err
