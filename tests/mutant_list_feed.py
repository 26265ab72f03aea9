"""Faults of runs that are fed straight from a seqio Task. Columns as in `mutant_list.py`."""

_CLIENT = "tests/data/feed/test_client.py"
_STREAMS = "tests/data/feed/test_streams.py"
_FEED = "tests/pretrain/reading/test_feed.py"

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/feed/client.py",
    _CLIENT,
    [
      (
        "other blocks before are not noticed",
        'if content["number"] == self._first and self._expected not in ("", content["before"]):',
        'if content["number"] == self._first and self._expected == content["before"] + "0":',
        "test_other_blocks_before_are_refused",
      ),
      (
        "a mark is the digest of one batch too few",
        "self._kept[batch - 1][1]",
        "self._kept[batch - 2][1]",
        "test_a_mark_is_the_digest_of_all_before_and_begins_the_same_blocks_elsewhere",
      ),
      (
        "rows are those of the batch's beginning",
        "rows[np.asarray(numbers) - first * self._size]",
        "rows[np.asarray(numbers) % self._size]",
        "test_rows_are_found_by_their_place_and_kept_for_a_while",
      ),
      (
        "padding counts among the tokens",
        'counts[self.vocabulary.special_ids["pad"]] = 0',
        'counts[self.vocabulary.special_ids["pad"]] += 0',
        "test_heldout_blocks_count_their_own_ids_without_padding",
      ),
      (
        "any end of the child is a mistake of the user's",
        "if code in (errors.ConfigError.exit_code, errors.DataError.exit_code):",
        "if code:",
        "test_a_child_that_is_killed_is_one_line",
      ),
    ],
  ),
  (
    "data/feed/__main__.py",
    _CLIENT,
    [
      (
        "the first chunk, which came with the start, counts as speed",
        "blocks += len(chunk) if begun else 0",
        "blocks += len(chunk)",
        "test_the_speed_is_told_first_without_what_came_with_the_start",
      ),
      (
        "the rest of a chunk is lost",
        "rest = [whole[cut * size :]]",
        "rest = []",
        "test_the_speed_is_told_first_without_what_came_with_the_start",
      ),
    ],
  ),
  (
    "data/feed/__main__.py",
    _STREAMS,
    [
      (
        "another feature is read by default",
        '("text_field", "text")',
        '("text_field", "title")',
        "test_the_feature_text_is_read_unless_another_is_named_as_by_data_prepare",
      ),
    ],
  ),
  (
    "pretrain/start/beginning.py",
    "tests/pretrain/start/test_beginning.py",
    [
      (
        "a feed goes on where processes differ",
        "opened.callback(records.close)",
        "opened.callback(len, '')",
        "test_a_feed_ends_where_the_run_cannot_begin",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/opened.py",
    "tests/lab/analysis/test_opened.py",
    [
      (
        "a run is looked at on other held-out blocks",
        "heldout, records = prepared.open_heldout(config)",
        "config.train.batch_size = rows; heldout, records = prepared.open_heldout(config)",
        "test_a_run_is_looked_at_on_the_held_out_blocks_that_it_was_evaluated_on",
      ),
    ],
  ),
  (
    "data/feed/stream.py",
    _STREAMS,
    [
      (
        "every seed gives one order",
        "split=split, seed=self._asked.seed, **options)",
        "split=split, seed=0, **options)",
        "test_the_order_is_a_function_of_the_seed",
      ),
      (
        "held-out blocks are shuffled",
        "self._chunks(split, shuffle=False, num_epochs=1)",
        "self._chunks(split, shuffle=True, num_epochs=1)",
        "test_blocks_to_evaluate_on_are_the_first_of_the_validation_split_in_its_order",
      ),
      (
        "records begin at 0",
        'start = {"first": first} if isinstance(self._task, PreparedTask) else {}',
        'start = {"first": 0} if isinstance(self._task, PreparedTask) else {}',
        "test_prepared_records_begin_at_any_batch_and_are_those_of_the_trainer",
      ),
    ],
  ),
  (
    "pretrain/reading/feed.py",
    _FEED,
    [
      (
        "what was read already is waited for again",
        "max(0, batch - read) * seconds",
        "max(0, batch) * seconds",
        "test_a_resume_that_takes_too_long_is_refused_with_what_allows_it",
      ),
      (
        "an hour is ten",
        "limit = config.data.skip_hours * 3600",
        "limit = config.data.skip_hours * 36_000",
        "test_the_line_says_what_resuming_costs",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/resume.py",
    _FEED,
    [
      (
        "another module goes on",
        'if given["module"] != saved["module"]:',
        'if given["module"] == saved["module"]:',
        "test_a_feed_that_would_give_other_blocks_is_refused",
      ),
    ],
  ),
]
