"""The command line in this process: what it answers, and its exit codes."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from thinwire._version import __version__
from thinwire.report.record import End, Eval, Header, Run
from thinwire.report.recorder import Recorder
from thinwire.run import compare as comparing

cli = importlib.import_module("thinwire.cli.main")  # the package has a function of that name
MOONS = "thinwire.testing.toys:Moons"


@dataclass
class Answer:
    """What a command came to."""

    code: int
    out: str
    err: str


@pytest.fixture
def thinwire(tmp_path, monkeypatch, capsys) -> Callable[..., Answer]:
    """Run a command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("THINWIRE_DATA", raising=False)

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["thinwire", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return run


def test_help_names_every_verb_and_an_example(thinwire):
    answer = thinwire("--help")
    assert answer.code == 0
    for verb in ("compare", "plan", "run", "report", "methods", "cite"):
        assert verb in answer.out
    for verb in ("compare", "plan", "run", "report", "cite"):
        answer = thinwire(verb, "--help")
        assert answer.code == 0
        assert f"thinwire {verb}" in answer.out


def test_without_a_verb_the_help_is_shown(thinwire):
    answer = thinwire()
    assert "compare" in answer.out + answer.err
    assert answer.code in (0, 2)  # as click has it


def test_the_version_is_told(thinwire):
    assert thinwire("--version") == Answer(0, f"thinwire {__version__}\n", "")


def test_methods_are_listed_and_cited(thinwire):
    listed = thinwire("methods")
    assert listed.code == 0
    for name in ("alone", "asgd", "gtopk", "localsgd", "ssgd", "topk"):
        assert name in listed.out
        cited = thinwire("cite", name)
        assert cited.code == 0
        assert cited.out.count("\n") == 1


def test_a_scale_is_printed_for_people_and_machines(thinwire):
    question = ("plan", "--model", "resnet50", "--link", "1gbit", "--scale", "2,1000")
    told = thinwire(*question)
    assert told.code == 0
    assert "1,000" in told.out
    assert "localsgd" in told.out
    found = json.loads(thinwire(*question, "--json").out)["scaled"]
    assert {each["size"] for each in found} == {2, 1000}
    gtopk = next(e for e in found if (e["method"], e["size"]) == ("gtopk", 1000))
    assert 0.5 < gtopk["efficiency"] < 1


def test_a_plan_is_printed_for_people_and_machines(thinwire):
    question = ("plan", "--model", "resnet50", "--nodes", "4", "--link", "1gbit", "--no-simulate")
    assert thinwire(*question).code == 0
    answer = thinwire(*question, "--json")
    assert answer.code == 0
    assert answer.out.lstrip().startswith("{")


BAD = {
    "an unknown verb": (["comapre"], "No such command 'comapre'"),
    "an unknown option": (["compare", "--sed", "3"], "No such option.*--sed"),
    "an argument too many": (["compare", "office"], "unexpected extra argument"),
    "no cluster for a run": (["run"], "Missing argument 'CLUSTER'"),
    "an unknown method": (["compare", "--methods", "gtpok"], "did you mean 'gtopk'"),
    "a method twice": (["compare", "--methods", "ssgd,ssgd"], "'ssgd' is asked for twice"),
    "no method": (["compare", "--methods", ", "], "no method is named"),
    "a module that is not there": (["compare", "--methods", "mine:Own"], "mine.*PYTHONPATH"),
    "an unknown setting": (["compare", "--set", "train.lrr=1"], "did you mean 'lr'"),
    "a setting without value": (["compare", "--set", "train.lr"], "the form is key=value"),
    "a setting of the real wire": (
        ["compare", "--set", "wire.collectives=native"],
        "no effect on a virtual run",
    ),
    "data of one method alone": (
        ["compare", "--set", "gtopk.train.train_limit=9"],
        "all methods see the same data",
    ),
    "seeds that are no numbers": (["compare", "--seeds", "three"], "a count, as 3, or seeds"),
    "no seed": (["compare", "--seeds", "0"], "at least 1"),
    "a negative seed": (["compare", "--seeds", "1,-2"], "different whole numbers from 0"),
    "a seed twice": (["compare", "--seeds", "4,4"], "different whole numbers"),
    "an unknown task": (["compare", "--task", "digit"], "did you mean 'digits'"),
    "a data set that is missing": (["compare", "--task", "cifar10"], "--data PATH"),
    "data where none are needed": (["compare", "--data", "/tmp"], "data = /tmp has no effect"),
    "an unknown preset": (["compare", "--cluster", "offce"], "did you mean 'office'"),
    "a bad target": (["compare", "--target", "97 percent"], "target = '97 percent'"),
    "a target of who is not there": (
        ["compare", "--methods", "ssgd", "--target", "97% of gtopk"],
        "gtopk",
    ),
    "a negative number of processes": (["compare", "--processes", "-1"], "--processes"),
    "an unreadable settings file": (["compare", "--config", "torn.toml"], "torn.toml.*line 2"),
    "a missing settings file": (["compare", "--config", "none.toml"], "none.toml: No such file"),
    "an unreadable cluster": (["compare", "--cluster", "torn.toml"], "torn.toml:2"),
    "a learning rate below 0": (["compare", "--set", "train.lr=-1"], "lr = -1"),
    "nothing to resume": (["compare", "--resume", "nowhere"], "nowhere.*does not exist"),
    "settings beside a resumption": (
        ["compare", "--resume", "nowhere", "--seeds", "9"],
        "--seeds has no effect with --resume",
    ),
    "an empty folder to report": (["report", "."], "holds no record.jsonl"),
    "no folder to report": (["report", "nowhere"], "does not exist"),
    "a run without a launcher": (["run", "office"], "add --processes 4.*torchrun"),
    "more processes than nodes": (
        ["run", "office", "--processes", "9", "--task", MOONS],
        "9 processes, but cluster 'office' has 8 nodes",
    ),
    "fewer processes than none": (["run", "office", "--processes", "-2"], "--processes"),
    "many processes for one machine": (
        ["run", "office", "--processes", "2", "--method", "alone", "--task", MOONS],
        "uses one machine: start 1",
    ),
    "a setting of the virtual wire": (
        ["run", "office", "--processes", "2", "--set", "wire.link_model=queue"],
        "no effect on a real run",
    ),
    "a negative seed of a run": (["run", "office", "--seed", "-1"], "--seed"),
    "an unknown method to cite": (["cite", "gtop"], "did you mean 'gtopk'"),
    "a plan for no cluster": (["plan", "--model", "resnet50"], "which cluster"),
    "a scale that is no number": (
        ["plan", "--model", "resnet50", "--link", "1gbit", "--scale", "2,x"],
        "give numbers of workers",
    ),
    "a scale and a number of nodes": (
        ["plan", "--model", "resnet50", "--nodes", "4", "--link", "1gbit", "--scale", "2"],
        "--nodes has no effect with --scale",
    ),
    "a plan with a wrong unit": (
        ["plan", "--model", "resnet50", "--nodes", "4", "--link", "1 kg"],
        "kg",
    ),
    "a plan for an unknown model": (
        ["plan", "--model", "resnet5", "--nodes", "4", "--link", "1gbit"],
        "resnet50",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_exits_with_2_a_message_and_nothing_written(thinwire, tmp_path, what):
    arguments, message = BAD[what]
    (tmp_path / "torn.toml").write_text("schema = 1\nname 'torn'\n")
    answer = thinwire(*arguments)
    words = " ".join((answer.out + answer.err).split())  # click's box breaks lines
    assert answer.code == 2
    assert re.search(message, words), words
    assert "Traceback" not in words
    assert [path.name for path in tmp_path.iterdir()] == ["torn.toml"]


def test_a_folder_in_use_is_refused_with_the_way_on(thinwire, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "record.jsonl").touch()
    answer = thinwire("compare", "--out", "used")
    assert (answer.code, answer.out) == (2, "")
    assert "already holds a record" in answer.err
    assert "--resume used" in answer.err
    answer = thinwire("run", "office", "--processes", "2", "--task", MOONS, "--out", "used")
    assert answer.code == 2
    assert "already holds a record" in answer.err


def test_a_folder_that_cannot_be_written_is_named(thinwire, tmp_path):
    (tmp_path / "file").write_text("")
    answer = thinwire("compare", "--task", MOONS, "--out", "file/run")
    assert answer.code == 2
    assert "cannot be written" in answer.err


def write_run(folder: Path, verb: str, status: str = "ok") -> None:
    settings = {"verb": verb, "methods": ["ssgd"]}
    with Recorder(folder) as recorder:
        recorder.write(
            Header(created="", command=[], settings=settings, cluster="", versions={}, machine={})
        )
        recorder.write(
            Run(run="ssgd/0", label="ssgd", method="ssgd", seed=0, mode="real", settings={},
                nodes=["a"], num_params=3)
        )  # fmt: skip
        recorder.write(
            Eval(run="ssgd/0", step=1, time=1.0, samples=8, sent=0, accuracy=0.9, loss=0.1)
        )
        recorder.write(End(run="ssgd/0", status=status, time=1.0, steps=1, samples=8))


def test_a_run_is_reported_again_from_its_folder(thinwire, tmp_path):
    write_run(tmp_path / "done", "run")
    answer = thinwire("report", "done", "--target", "0.8")
    assert answer.code == 0
    assert "90.0" in answer.out
    assert (tmp_path / "done" / "report.html").stat().st_size > 1000
    assert thinwire("report", "done", "--target", "eight").code == 2


def test_a_real_run_cannot_be_resumed_as_a_comparison(thinwire, tmp_path):
    write_run(tmp_path / "done", "run")
    answer = thinwire("compare", "--resume", "done")
    assert answer.code == 2
    assert "holds no comparison to resume" in answer.err


def test_an_interruption_exits_with_130_and_says_how_to_go_on(thinwire, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "run_jobs", interrupted)
    answer = thinwire("compare", "--task", MOONS, "--out", "my runs")
    assert answer.code == 130
    assert "thinwire compare --resume 'my runs'" in answer.err
    assert "thinwire report 'my runs'" in answer.err
    assert (tmp_path / "my runs" / "record.jsonl").stat().st_size > 0


def test_an_interruption_before_anything_is_written_offers_nothing(thinwire, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "load_task", interrupted)
    answer = thinwire("compare", "--task", MOONS)
    assert answer.code == 130
    assert "--resume" not in answer.err


def write_mistaken(folder):
    (folder / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from thinwire import Method\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mistaken(Method):\n"
        "    def worker(self, w):\n"
        "        raise RuntimeError('not today')\n"
    )


@pytest.mark.distributed
def test_a_target_relative_to_a_method_that_only_failed_gives_everything_but_a_verdict(
    thinwire, tmp_path
):
    write_mistaken(tmp_path)
    answer = thinwire(
        *("compare", "--task", MOONS, "--methods", "alone,mine:Mistaken", "--seeds", "1"),
        *("--processes", "1", "--set", "train.epochs=0.2", "--out", "out"),
        *("--target", "97% of mine:Mistaken"),
    )
    assert answer.code == 1, answer.err
    assert "failed: mine:Mistaken/0" in answer.err
    assert "No verdict: the target is 97% of mine:Mistaken" in answer.out.replace("\n", " ")
    assert "alone" in answer.out
    for name in ("record.jsonl", "report.html", "summary.json", "summary.csv"):
        assert (tmp_path / "out" / name).exists()


@pytest.mark.distributed
def test_a_comparison_with_a_failed_run_exits_with_1_names_it_and_reports_the_others(
    thinwire, tmp_path
):
    write_mistaken(tmp_path)
    answer = thinwire(
        *("compare", "--task", MOONS, "--methods", "alone,mine:Mistaken", "--seeds", "7,8"),
        *("--processes", "1", "--set", "train.epochs=0.2", "--target", "0.3", "--out", "out"),
    )
    assert answer.code == 1, answer.err
    assert "failed: mine:Mistaken/7: rank 0, step 0" in answer.err
    assert "RuntimeError: not today" in answer.err
    assert "mine.py" in answer.err
    assert "alone" in answer.out
    for name in ("record.jsonl", "report.html", "summary.json"):
        assert (tmp_path / "out" / name).exists()
