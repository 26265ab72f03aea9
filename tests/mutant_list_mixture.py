"""Faults of mixtures: rates, orders, seeds, what may change on resume. Columns as in `mutant_list.py`."""

_MIXTURE = "tests/data/test_mixture.py"
_SOURCES = "tests/pretrain/reading/test_mixed.py"
_RUN = "tests/pretrain/reading/test_mixture_run.py"

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/mixture.py",
    _MIXTURE,
    [
      (
        "a source's rows are rounded down, so a later stage changes rows before it",
        "return -(-(slope * positions + offset) // scale)",
        "return (slope * positions + offset) // scale",
        "test_two_sources_come_in_an_order_worked_by_hand",
      ),
      (
        "each stage begins to count at nothing",
        "offset = due - times[number] * share",
        "offset = math.ceil(due) - times[number] * share",
        "test_every_prefix_is_within_its_bound_through_random_stages",
      ),
      (
        "a stage begins a row early",
        "bisect.bisect_right(firsts, positions) - 1",
        "bisect.bisect_right(firsts, positions + 1) - 1",
        "test_every_prefix_is_within_its_bound_through_random_stages",
      ),
      (
        "two sources of one size share their order",
        'f"{seed} {name}".encode()',
        'f"{seed}".encode()',
        "test_epochs_of_a_source_are_permutations_and_no_two_sources_share_an_order",
      ),
      (
        "rows of several sources are put back in another order",
        "      read[at] = self._all[source].numbered(local)",
        "      read[at] = self._all[source].numbered(local[::-1])",
        "test_a_batch_has_its_rates_and_any_rows_of_it_are_the_same_rows",
      ),
      (
        "evaluation begins the smallest source again",
        "any(taken > size for",
        "all(taken > size for",
        "test_rows_for_evaluation_end_with_the_source_that_ends_first",
      ),
      (
        "the largest source decides the frequencies of ids",
        "[float(share) * one / one.sum() for",
        "[float(share) * one for",
        "test_counts_of_ids_are_those_of_the_sources_at_their_shares",
      ),
    ],
  ),
  (
    "pretrain/reading/mixed.py",
    _SOURCES,
    [
      (
        "a temperature raises rates to its power",
        "** (1 / Decimal(str(temperature)))",
        "** Decimal(str(temperature))",
        "test_a_temperature_takes_roots_of_rates",
      ),
      (
        "the share of a source is its rate in the first stage",
        "zip(rates[directory], lengths)), Fraction(0)) / total",
        "zip(rates[directory][:1], [total])), Fraction(0)) / total",
        "test_shares_of_the_whole_run_and_names",
      ),
      (
        "the number of a source may be another's name",
        "next(one for one in numbered if one not in names)",
        "next(numbered)",
        "test_names_of_sources_are_told_apart",
      ),
      (
        "records of another packing are mixed in",
        '("packing", made.packing, expected.packing)',
        '("packing", made.packing, made.packing)',
        "test_sources_that_do_not_belong_together_are_refused",
      ),
    ],
  ),
  (
    "pretrain/evaluate.py",
    _RUN,
    [
      (
        "the held-out loss is the mean of the sources without their rates",
        "sum(float(heldout.shares[name]) * value for name, value in parts.items()) / whole",
        "sum(value for name, value in parts.items()) / len(parts)",
        "test_a_run_takes_rows_at_its_rates_and_says_so",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/resume.py",
    _RUN,
    [
      (
        "a stage in the past may change",
        "if [*_digests(past)] != [*_digests(wanted)]:",
        "if [*_digests(past)][:1] != [*_digests(wanted)][:1]:",
        "test_only_stages_that_begin_later_may_change",
      ),
      (
        "a stage that began a step ago may change",
        "[stage for stage in stages if stage[0] < taken]",
        "[stage for stage in stages if stage[0] < taken - 1]",
        "test_only_stages_that_begin_later_may_change",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/resume.py",
    "tests/pretrain/checkpoints/test_resume.py",
    [
      (
        "batches left out after a spike do not count as taken",
        'position(meta["step"], skips)',
        'position(meta["step"], [])',
        "test_stages_of_a_mixture_count_the_batches_that_were_left_out",
      )
    ],
  ),
]
