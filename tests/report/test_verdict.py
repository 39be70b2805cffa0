from __future__ import annotations

import re

import pytest

from thinwire.report import Note, compare, remarks, verdict


@pytest.fixture
def judge(make_record):
    def judged(*runs, target="0.9"):
        return verdict(compare(make_record(*runs), target))

    return judged


def test_a_target_that_failed_runs_leave_unknown_is_said(judge, make_run):
    bad, good = make_run("ssgd", status="failed"), make_run("gtopk")
    assert judge(bad, good, target="97% of ssgd") == (
        "No verdict: the target is 97% of ssgd, and no run of that ended well. thinwire report "
        "FOLDER --target sets another."
    )
    assert judge(bad, target="97%") == "No verdict: every run failed."


def test_the_soonest_method_is_named_against_both_baselines(judge, make_run):
    sentence = judge(
        make_run("alone", every=2.8), make_run("ssgd", every=4.6), make_run("gtopk", every=2.0)
    )
    assert sentence == (
        "gtopk reaches 90.0 % test accuracy 2.3× sooner than plain DDP and 1.4× sooner than one "
        "machine."
    )


def test_one_machine_is_recommended_when_it_is_soonest(judge, make_run):
    sentence = judge(make_run("alone"), make_run("ssgd", every=3.0), make_run("gtopk", every=2.0))
    assert sentence == (
        "Use one machine: it reaches 90.0 % test accuracy 2.0× sooner than gtopk and 3.0× sooner "
        "than plain DDP."
    )


def test_a_tie_goes_to_one_machine(judge, make_run):
    sentence = judge(make_run("alone", every=1.01), make_run("gtopk"))
    assert sentence.startswith("Use one machine")
    assert "about as soon as gtopk" in sentence


def test_plain_ddp_is_fine_when_nothing_beats_it(judge, make_run):
    sentence = judge(make_run("alone", every=2.0), make_run("ssgd"), make_run("gtopk", every=1.5))
    assert sentence == (
        "Plain DDP is fine here: it reaches 90.0 % test accuracy 1.5× sooner than gtopk and 2.0× "
        "sooner than one machine."
    )


def test_methods_too_close_to_call_are_named(judge, make_run):
    sentence = judge(make_run("ssgd", every=3.0), make_run("gtopk"), make_run("localsgd"))
    assert sentence.endswith("; localsgd about as soon.")


def test_a_baseline_that_missed_is_said_to_have(judge, make_run):
    sentence = judge(make_run("ssgd", accuracies=[0.5]), make_run("gtopk"))
    assert "plain DDP did not reach it" in sentence


def test_nothing_reached_names_the_best_and_what_to_do(judge, make_run):
    sentence = judge(make_run("ssgd", accuracies=[0.7]), make_run("gtopk", accuracies=[0.8]))
    assert sentence == (
        "Nothing reached the target of 90.0 % test accuracy: the best final accuracy is gtopk's, "
        "80.0 %. Train longer, or lower the target."
    )


def test_a_target_reached_on_some_seeds_is_not_reached(judge, make_run):
    sentence = judge(make_run("gtopk", 0), make_run("gtopk", 1, accuracies=[0.8]))
    assert "on every seed (gtopk on 1 of 2)" in sentence


def test_a_method_that_lost_the_accuracy_again_is_passed_over(judge, make_run):
    sentence = judge(make_run("alone", accuracies=[0.95, 0.3]), make_run("gtopk", every=4.0))
    assert sentence.startswith("gtopk reaches")
    assert "one machine did not keep it" in sentence


def test_when_nothing_kept_the_target_no_method_is_named_for_it(judge, make_run):
    sentence = judge(make_run("alone", accuracies=[0.95, 0.3]))
    assert "reached the target of 90.0 % test accuracy and kept it" in sentence


def test_a_lower_end_is_said_in_the_same_sentence(judge, make_run):
    runs = [make_run("ssgd", accuracies=[0.5, 0.99]), make_run("gtopk", accuracies=[0.9, 0.93])]
    assert judge(*runs).endswith(", but its final accuracy is 6.0 points below that of plain DDP.")


def test_a_single_method_gets_a_time_and_no_comparison(judge, make_run):
    assert judge(make_run("gtopk")) == "gtopk reaches 90.0 % test accuracy after 2 s."
    assert "nothing ran to compare it with" in judge(make_run("alone"))


@pytest.mark.parametrize("status", ["failed", None])
def test_no_run_that_ended_well_is_no_verdict(judge, make_run, status):
    sentence = judge(make_run("ssgd", status=status))
    assert sentence.startswith(("No verdict", "Nothing reached"))


def test_remarks_tell_ties_misses_failures_and_what_was_left_out(make_run, make_record):
    failed = make_run("dgc", 0, status="failed", error="rank 2, step 7: NaN\nand a traceback")
    record = make_record(
        make_run("gtopk"),
        make_run("localsgd"),
        make_run("topk", accuracies=[0.7]),
        failed,
        make_run("asgd", status=None),
        make_run("ssgd", agree=False),
    )
    record.warnings.append("record.jsonl:7: the last line is torn and was dropped")
    told = "\n".join(remarks(compare(record, "0.9"), record))
    assert "gtopk and localsgd" in told
    assert "Miss: topk reached the target on 0 of 1 seeds" in told
    assert "Failed: dgc, seed 0: rank 2, step 7: NaN." in told
    assert "traceback" not in told
    assert "Interrupted: asgd, seed 0" in told
    assert "Replicas of ssgd, seed 0 ended with different parameters" in told
    assert "record.jsonl:7" in told
    assert "One seed only" in told


def test_notes_that_differ_in_numbers_only_are_told_once(make_run, make_record):
    runs = [make_run("ssgd", seed) for seed in range(3)]
    for seed, run in enumerate(runs):
        run.notes.append(Note(run=run.start.run, time=0.0, text=f"kept up to {seed}.5 s"))
    record = make_record(*runs)
    told = [each for each in remarks(compare(record, "0.9"), record) if "Note" in each]
    assert told == ["Note from ssgd seed 0: kept up to 0.5 s (and the like from 2 more runs)."]


def test_every_sentence_ends_once(judge, make_run, make_record):
    record = make_record(make_run("ssgd", status="failed", error="it broke."), make_run("topk"))
    for told in [*remarks(compare(record, "0.9"), record), judge(make_run("ssgd"))]:
        assert re.search(r"[^.]\.$", told)
