from __future__ import annotations

import pytest

from thinwire.errors import InputError
from thinwire.report import Spread, compare, parse_target
from thinwire.report.compare import tied


def _spread(*values):
    spread = Spread.of(values)
    assert spread is not None
    return spread


def test_time_to_target_is_that_of_the_first_evaluation_at_or_above_it(make_run, make_record):
    run = make_run("ssgd", accuracies=[0.5, 0.8, 0.79, 0.9], every=3.0)
    assert compare(make_record(run), "0.8").row("ssgd").times == (6.0,)


def test_final_and_best_accuracy_over_seeds(make_run, make_record):
    runs = [make_run("ssgd", seed, accuracies=[0.9, last]) for seed, last in enumerate((0.8, 0.6))]
    row = compare(make_record(*runs), "0.5").row("ssgd")
    assert row.final is not None
    assert row.best is not None
    assert (row.final.mean, row.best.mean) == pytest.approx((0.7, 0.9))
    assert row.final.deviation == pytest.approx(0.2 / 2**0.5)


def test_one_miss_makes_a_miss_with_its_count(make_run, make_record):
    runs = [make_run("topk", seed, accuracies=[0.5, top]) for seed, top in enumerate((0.9, 0.7))]
    base = make_run("ssgd")
    row = compare(make_record(base, *runs), "0.9").row("topk")
    assert row.times == (2.0, None)
    assert (row.hits, row.time, row.speedup) == (1, None, {})


def test_a_failed_run_is_a_miss_even_if_it_had_been_there(make_run, make_record):
    runs = [make_run("topk", 0), make_run("topk", 1, status="failed")]
    row = compare(make_record(*runs), "0.9").row("topk")
    assert (row.times, row.time, row.failed) == ((2.0, None), None, (1,))
    assert row.final is not None
    assert row.final.count == 1


@pytest.mark.parametrize("status", [None, "interrupted"])
def test_an_interrupted_run_is_in_no_number(make_run, make_record, status):
    runs = [make_run("topk", 0), make_run("topk", 1, status=status, accuracies=[0.1])]
    row = compare(make_record(*runs), "0.9").row("topk")
    assert (row.times, row.seeds, row.interrupted) == ((2.0,), (0,), (1,))
    assert row.final is not None
    assert row.final.mean == 0.9


def test_speedup_is_the_ratio_of_medians_with_the_spread_of_seedwise_ratios(make_run, make_record):
    base = [make_run("ssgd", seed, every=every) for seed, every in enumerate((4.0, 6.0, 8.0))]
    fast = [make_run("gtopk", seed, every=every) for seed, every in enumerate((2.0, 2.0, 1.0))]
    speedup = compare(make_record(*base, *fast), "0.9").row("gtopk").speedup["ssgd"]
    assert (speedup.median, speedup.low, speedup.high) == (3.0, 2.0, 8.0)


def test_servers_bytes_are_shared_out_over_the_workers(make_run, make_record):
    run = make_run("asgd", sent=[1000, 3000], server_sent=4000)
    row = compare(make_record(run), "0.9").row("asgd")
    assert row.step_bytes is not None
    assert row.step_bytes.mean == 8000 / (2 * 20)


def test_waiting_is_a_share_of_all_workers_time(make_run, make_record):
    run = make_run("ssgd", waited=[0.5, 1.5], joules=[10.0, 20.0])
    row = compare(make_record(run), "0.9").row("ssgd")
    assert row.waiting is not None
    assert row.energy is not None
    assert (row.waiting.mean, row.energy.mean) == (0.5, 30.0)


def test_no_joules_are_no_energy(make_run, make_record):
    assert compare(make_record(make_run("ssgd")), "0.9").row("ssgd").energy is None


def test_a_baseline_with_settings_still_stands_for_its_method(make_run, make_record):
    runs = [make_run("ssgd accumulate=8", every=2.0), make_run("gtopk")]
    comparison = compare(make_record(*runs), "0.9")
    assert comparison.baselines == {"ssgd": "ssgd accumulate=8"}
    assert comparison.row("gtopk").speedup["ssgd"].median == 2.0


def test_the_plain_label_is_the_baseline_before_any_with_settings(make_run, make_record):
    runs = [make_run("ssgd accumulate=8"), make_run("ssgd")]
    assert compare(make_record(*runs), "0.9").baselines == {"ssgd": "ssgd"}


def test_a_relative_target_is_of_alone_and_says_so(make_run, make_record):
    runs = [make_run("ssgd", accuracies=[0.99]), make_run("alone", accuracies=[0.8])]
    target = compare(make_record(*runs), "50%").target
    assert target is not None
    assert target.accuracy == pytest.approx(0.4)
    assert target.source == "50 % of alone's best final accuracy, 80.0 %"


def test_a_relative_target_may_name_its_method(make_run, make_record):
    runs = [make_run("ssgd", accuracies=[0.9]), make_run("alone", accuracies=[0.8])]
    target = compare(make_record(*runs), "100% of ssgd").target
    assert target is not None
    assert target.accuracy == 0.9


def test_all_of_its_own_best_is_reached_by_the_baseline(make_run, make_record):
    run = make_run("alone", accuracies=[0.3, 0.1 + 0.2 + 0.6])
    assert compare(make_record(run), "100%").row("alone").hits == 1


def test_the_target_is_the_records_unless_given(make_run, make_record):
    record = make_record(make_run("ssgd"), settings={"target": "0.7"})
    of_record, given = compare(record).target, compare(record, 0.6).target
    assert of_record is not None
    assert given is not None
    assert (of_record.accuracy, given.accuracy) == (0.7, 0.6)


def test_without_a_finished_run_a_relative_target_is_unknown(make_run, make_record):
    assert compare(make_record(make_run("ssgd", status=None)), "97%").target is None


@pytest.mark.parametrize("text", ["", "high", "97", "0", "-0.5", "1.5", "120%", "97% ssgd", "nan"])
def test_a_target_out_of_range_is_refused_with_examples(text):
    with pytest.raises(InputError, match=r"target = .*0\.95"):
        parse_target(text, {"alone": 0.9})


def test_a_target_relative_to_an_absent_method_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'ssgd'"):
        parse_target("97% of sgd", {"ssgd": 0.9})


def test_overlapping_ranges_are_a_tie():
    assert tied(_spread(1.0, 2.0), _spread(1.9, 3.0))


def test_two_per_cent_apart_is_a_tie_and_three_is_not():
    assert tied(_spread(1.0), _spread(1.02))
    assert not tied(_spread(1.0), _spread(1.03))


def test_a_method_that_falls_back_did_not_keep_the_target(make_run, make_record):
    runs = [make_run("alone", accuracies=[0.9, 0.5]), make_run("ssgd", accuracies=[0.5, 0.89])]
    comparison = compare(make_record(*runs), "0.88")
    assert not comparison.row("alone").kept
    assert [row.label for row in comparison.ranked] == ["ssgd"]


def test_a_target_relative_to_what_only_failed_is_none_and_remembered(make_run, make_record):
    record = make_record(make_run("ssgd", status="failed"), make_run("gtopk"))
    comparison = compare(record, "97% of ssgd")
    assert comparison.target is None
    assert comparison.asked == "97% of ssgd"
    assert comparison.row("gtopk").time is None
    with pytest.raises(InputError, match="no run of 'sgd'; did you mean 'ssgd'"):
        compare(record, "97% of sgd")
