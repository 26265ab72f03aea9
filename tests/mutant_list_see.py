"""Faults of analyses, the page about runs and trackers. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/page/template.py",
    "tests/pretrain/report/test_report.py",
    [("text is not escaped", "autoescape=True", "autoescape=False", "test_hostile_text_stays_text")],
  ),
  (
    "data/page/__init__.py",
    "tests/pretrain/report/test_report.py",
    [("text may turn around what follows", r"\u202a-\u202e", "", "test_hostile_text_stays_text")],
  ),
  (
    "pretrain/report/report.html",
    "tests/pretrain/report/test_report.py",
    [
      (
        "any address is a link",
        '{% if address.startswith(("https://", "http://")) %}',
        "{% if address %}",
        "test_hostile_text_stays_text",
      ),
    ],
  ),
  (
    "pretrain/report/config_diff.py",
    "tests/pretrain/report/test_report.py",
    [
      (
        "a field that an older run lacks differs",
        "[run.fields.get(name, defaults.get(name)) for run in runs]",
        "[run.fields.get(name) for run in runs]",
        "test_runs_beside_each_other_show_what_differs",
      ),
    ],
  ),
  (
    "pretrain/logs/metrics.py",
    "tests/pretrain/report/test_series.py",
    [
      (
        "hours count the interval before",
        'taken.append(taken[-1] + (line["step"] - steps[-1]) / speed / 3600)',
        'taken.append(taken[-1] + line["step"] / speed / 3600)',
        "test_hours_are_the_steps_over_their_speeds",
      ),
    ],
  ),
  (
    "pretrain/report/series.py",
    "tests/pretrain/report/test_series.py",
    [
      (
        "a thinned curve loses its peak",
        "kept |= {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}",
        "kept |= {int(stretch[0])}",
        "test_a_long_curve_keeps_its_ends_and_its_peak",
      ),
    ],
  ),
  (
    "lab/analysis/space.py",
    "tests/lab/analysis/test_analyses.py",
    [
      (
        "uniformity of distances, not of their squares",
        "return float(np.log(np.mean(np.exp(-2 * squared))))",
        "return float(np.log(np.mean(np.exp(-2 * squared**0.5))))",
        "test_uniform_vectors_have_the_analytic_uniformity_and_equal_ones_none",
      ),
      (
        "a thing is paired with itself",
        "return first, (first + rng.integers(1, number, pairs)) % number",
        "return first, (first + rng.integers(0, number, pairs)) % number",
        "test_uniform_vectors_have_the_analytic_uniformity_and_equal_ones_none",
      ),
    ],
  ),
  (
    "lab/analysis/correction.py",
    "tests/lab/analysis/test_analyses.py",
    [
      (
        "padding counts",
        "group = group & (ids != pad_id)",
        "group = group & (ids == ids)",
        "test_an_encoder_that_copies_everything_is_right_where_nothing_is_replaced",
      ),
    ],
  ),
  (
    "pretrain/logs/trackers.py",
    "tests/pretrain/logs/test_trackers.py",
    [
      (
        "a later start begins another run",
        'known_id = before.get("id", "") if before.get("run") == run_id else ""',
        'known_id = ""',
        "test_mlflow_takes_parameters_once_and_the_same_run_again",
      ),
    ],
  ),
  (
    "lab/analysis/curricula.py",
    "tests/lab/analysis/test_curricula.py",
    [
      (
        "original tokens that seem replaced count as right",
        "right = (probability > 0.5) == truth",
        "right = (probability > 0.5) | ~truth",
        "test_shares_of_planted_answers",
      ),
      (
        "other masks count as the same",
        "for one, other in zip(pair, masks[0]))",
        "for one, other in zip(pair, pair))",
        "test_runs_are_asked_about_the_same_text_and_a_note_says_whether_with_the_same_masks",
      ),
    ],
  ),
  (
    "lab/studies/sweeps.py",
    "tests/lab/studies/test_ablations.py",
    [
      (
        "steps on the way are points of a sweep",
        'row["step"] == asked.steps(asked.study.arms[arm])[-1]',
        'row["step"] in asked.steps(asked.study.arms[arm])',
        "test_rows_of_a_sweep_are_plotted_over_its_values_with_intervals",
      ),
    ],
  ),
  (
    "lab/studies/statistics.py",
    "tests/lab/studies/test_ablations.py",
    [
      (
        "the interval is that of one run",
        "* differences.std(ddof=1) / math.sqrt(len(seeds))",
        "* differences.std(ddof=1)",
        "test_a_difference_is_taken_seed_by_seed",
      ),
    ],
  ),
  (
    "lab/studies/table.py",
    "tests/lab/studies/test_ablations.py",
    [
      (
        "a row is compared with its base at another step",
        "[(base, at(base, step)) for base in (arm.base, *arm.against) if base]",
        "[(base, at(base, steps[-1])) for base in (arm.base, *arm.against) if base]",
        "test_cells_are_run_seed_by_seed_and_compared",
      ),
    ],
  ),
  (
    "lab/studies/cells.py",
    "tests/lab/studies/test_ablations.py",
    [
      (
        "cells of other flags are taken for these",
        "if not all(one in made for one in expected) and not all(one in expected for one in made):",
        "if not made:",
        "test_a_finished_cell_of_other_flags_is_refused",
      ),
      (
        "a cell that is asked for more counts as finished",
        'all(one in found["commands"] for one in asked.commands(cell))',
        'bool(found["commands"])',
        "test_a_finished_cell_is_asked_for_more_and_what_has_ended_is_not_done_again",
      ),
      (
        "the scores of the untrained encoder count as those of the pretrained one",
        'steps = {"pretrained": last, "untrained": 0}',
        'steps = {"pretrained": last, "untrained": last}',
        "test_both_sides_are_fine_tuned_with_the_same_rows_and_compared",
      ),
      (
        "a row does not wait for what it begins with",
        "if waits:",
        "if not arm:",
        "test_a_cell_of_another_process_is_left_to_it_and_so_is_what_begins_with_it",
      ),
    ],
  ),
  (
    "lab/analysis/word_pairs.py",
    "tests/lab/analysis/test_analyses.py",
    [
      (
        "words are compared with words of any frequency",
        "near = order[max(rank[second] - _NEAR, 0) : rank[second] + _NEAR + 1]",
        "near = order",
        "test_words_are_compared_with_words_of_like_frequency",
      ),
    ],
  ),
]
