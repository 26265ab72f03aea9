"""Faults of what is read from and sent to buckets. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/buckets/mirror.py",
    "tests/data/test_buckets.py",
    [
      (
        "a file that was fetched once is never fetched again",
        "if self._known.get(name) != [there[name], self._mark(name)]",
        "if name not in self._known",
        "test_only_what_has_changed_is_fetched_again",
      ),
    ],
  ),
  (
    "data/buckets/copies.py",
    "tests/pretrain/checkpoints/test_bucket_reading.py",
    [
      (
        "what is damaged twice is taken",
        "if damaged(mirror.directory, again):",
        "if not again:",
        "test_records_are_held_against_their_digests",
      ),
    ],
  ),
  (
    "data/buckets/outputs.py",
    "tests/data/test_bucket_outputs.py",
    [
      (
        "the mark goes with the other files",
        "mirror.push(names[:-1])",
        "mirror.push(names)",
        "test_the_file_written_last_goes_last_and_what_is_unfinished_stays",
      ),
      (
        "the old mark stays while an output is replaced",
        "if name in (*gone, *names[-1:])",
        "if name in gone",
        "test_a_replaced_output_has_no_mark_meanwhile_and_loses_what_is_gone",
      ),
    ],
  ),
  (
    "data/buckets/owner.py",
    "tests/pretrain/checkpoints/test_bucket_workdir.py",
    [
      (
        "an owner does not see that another has taken over",
        'if found.get("token", "") != content["token"]:',
        'if not found.get("token", ""):',
        "test_one_process_owns_a_place_and_a_dead_one_is_outlasted",
      ),
    ],
  ),
  (
    "finetune/search/bucket_workdir.py",
    "tests/finetune/search/test_bucket_workdir.py",
    [
      (
        "marks go up with the weights that they call whole",
        "if name not in {*last, *marks}])",
        "if name not in {*last}])",
        "test_weights_go_up_before_their_marks_and_results_after_both",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/bucket_workdir.py",
    "tests/pretrain/checkpoints/test_bucket_workdir.py",
    [
      (
        "checkpoints to keep for good are removed",
        "[-self._keep :], *self._keep_steps, *here}",
        "[-self._keep :], *here}",
        "test_old_checkpoints_and_remains_of_uploads_go",
      ),
      (
        "what is left of an upload stays in the next one",
        "self._mirror.remove({*there} - {*names})",
        "self._mirror.remove(())",
        "test_old_checkpoints_and_remains_of_uploads_go",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/bucket_steps.py",
    "tests/pretrain/checkpoints/test_bucket_reading.py",
    [
      (
        "a checkpoint that was not sent to its end counts",
        "if marks[step] <= {*found}",
        "if found",
        "test_a_checkpoint_is_fetched_alone_and_checked",
      ),
    ],
  ),
]
