"""Faults of what a run survives: damage, kills, spikes. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/command.py",
    "tests/data/test_command.py",
    [
      (
        "a signal ends a command that has ended by itself",
        "    if not self._is_settled:",
        "    if True:",
        "test_a_signal_to_a_command_that_is_settled_is_a_line_and_another_kills",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/checkpoint.py",
    "tests/pretrain/checkpoints/test_checkpoint.py",
    [
      (
        "a save that has failed waits for the other processes",
        "self._failure = None if failure is self._handled else failure",
        "self._failure = None",
        "test_save_that_fails_in_the_background_is_one_line_and_leaves_the_older_step",
      ),
      (
        "what led the caller to save is a failed save",
        "self._failure = None if failure is self._handled else failure",
        "self._failure = failure",
        "test_a_save_may_follow_an_exception_that_the_caller_handles",
      ),
    ],
  ),
  (
    "pretrain/pod/stop.py",
    "tests/pretrain/test_train.py",
    [
      (
        "who goes on after the loop does not learn that it is over",
        "self._settle(self.is_set)",
        "self._has_agreed = self.is_set",
        "test_a_signal_behind_the_last_step_changes_nothing_and_is_told",
      ),
    ],
  ),
  (
    "pretrain/reading/skips.py",
    "tests/pretrain/watching/test_watch.py",
    [
      (
        "the update after a roll-back takes the old data",
        "if skip.at <= step",
        "if skip.at < step",
        "test_data_is_taken_from_further_on_after_a_skip",
      ),
    ],
  ),
  (
    "pretrain/watching/spikes.py",
    "tests/pretrain/watching/test_watch.py",
    [
      (
        "going back is tried once more",
        "if tried == MOST_ROLL_BACKS:",
        "if tried > MOST_ROLL_BACKS:",
        "test_going_back_is_tried_a_few_times",
      ),
      (
        "checkpoints forget the losses before",
        "[*self._losses] if self._zscore else []",
        "[*self._losses] if not self._zscore else []",
        "test_a_loss_far_above_those_before_is_a_spike",
      ),
    ],
  ),
  (
    "pretrain/reading/ledger.py",
    "tests/pretrain/reading/test_ledger.py",
    [
      (
        "the line of the saved step goes",
        "number > step",
        "number >= step",
        "test_what_came_after_the_checkpoint_and_a_line_cut_by_a_kill_go",
      ),
      (
        "digests depend on the type of the ids",
        'ids.astype("<i4").tobytes()',
        "ids.tobytes()",
        "test_a_line_has_the_records_and_the_digest_of_what_was_read",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/phases.py",
    "tests/pretrain/checkpoints/test_phases.py",
    [
      (
        "the first phase is the last",
        "return max((int(found[1])",
        "return min((int(found[1])",
        "test_the_last_phase_that_is_over_is_named",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/integrity.py",
    "tests/pretrain/checkpoints/test_integrity.py",
    [
      (
        "what is there is what was saved",
        "is_same = files.sha256(path / name) == digest",
        "is_same = bool(files.sha256(path / name))",
        "test_weights_that_are_damaged_are_not_read",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/integrity.py",
    "tests/faults/test_faults.py",
    [
      (
        "a step may have another's number",
        'if str(content["step"]) != path.name:',
        'if not str(content["step"]):',
        "test_each_kind_of_damage_leaves_an_older_step[renamed copy above]",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/checkpoint.py",
    "tests/pretrain/checkpoints/test_saves.py",
    [
      (
        "slow saves are not told",
        "if waited > LONG_WAIT:",
        "if waited > LONG_WAIT + 9:",
        "test_a_save_longer_than_its_interval_is_told_with_both_times_and_none_is_skipped",
      ),
    ],
  ),
  (
    "pretrain/export/foreign/files.py",
    "tests/pretrain/export/test_misspelt_names.py",
    [
      (
        "a tensor's name may be anything",
        "if not name.isprintable():",
        "if not name:",
        "test_names_that_cannot_be_printed_are_refused",
      ),
    ],
  ),
]
