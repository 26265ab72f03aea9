"""Faults of the engines of a preparation. Columns as in `mutant_list.py`."""

_BEAM = "tests/data/prepare/test_beam.py"
_STEPS = "tests/data/prepare/test_steps.py"
_RANKS = "tests/data/prepare/test_ranks.py"
_CALLS = "tests/data/prepare/test_calls.py"

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/prepare/calls.py",
    _CALLS,
    [
      (
        "a call may name any function of Python",
        "if not module.startswith(PLACES):",
        "if False:",
        "test_names_that_no_step_calls_are_refused",
      ),
      (
        "a call may name what a module of ours imports",
        'if getattr(value, "__module__", "") != module:',
        "if False:",
        "test_names_that_no_step_calls_are_refused",
      ),
    ],
  ),
  (
    "data/prepare/steps.py",
    _STEPS,
    [
      (
        "results come in the order in which they were finished",
        "numbers = range(len(self.call.parts))",
        'numbers = sorted(self._marked("done"), key=lambda n: self._mark(n, "done").stat().st_mtime_ns)',
        "test_results_come_in_order_whoever_did_them_and_however_often",
      ),
      (
        "a worker of another version works along",
        "if call.code != code_digest():",
        "if False:",
        "test_a_worker_with_other_code_is_refused",
      ),
      (
        "parts are done after one has failed",
        "return step.error() or step.run(number)",
        "return step.run(number)",
        "test_a_users_error_is_a_mark_and_ends_the_work_of_others",
      ),
      (
        "a full disk is tried again",
        "if errors.is_full_disk(error):",
        "if False:",
        "test_a_full_disk_is_a_mark_and_any_other_error_is_raised",
      ),
      (
        "the steps of an earlier start are removed where live workers still write",
        "(work / FOLDER).rename(aside)",
        "aside = work / FOLDER",
        "test_steps_are_removed_beside_a_worker_that_goes_on_writing",
      ),
      (
        "each part decodes the whole call",
        "@functools.lru_cache(maxsize=2)",
        "",
        "test_a_call_is_decoded_once_in_a_process",
      ),
    ],
  ),
  (
    "data/prepare/ranks.py",
    _RANKS,
    [
      (
        "a rank does all parts from its own on",
        "return [number for number in step.missing() if number % self.ranks == self.rank]",
        "return [number for number in step.missing() if number >= self.rank]",
        "test_shares_are_every_nth_part",
      ),
      (
        "a rank that is started again does all of its parts again",
        "for number in step.missing() if",
        "for number in range(len(step.call.parts)) if",
        "test_shares_are_every_nth_part",
      ),
      (
        "a follower tries a part without its files without end",
        "if step.is_there():",
        "if False:",
        "test_a_missing_file_of_a_step_that_is_there_ends_a_follower",
      ),
      (
        "a rank of the number of ranks is taken",
        "if not 0 <= asked.rank < asked.ranks:",
        "if not 0 <= asked.rank <= asked.ranks:",
        "test_options_that_make_no_sense_are_refused",
      ),
    ],
  ),
  (
    "data/prepare/engine.py",
    "tests/data/prepare/test_engine.py",
    [
      (
        "a source is taken for one path",
        "paths = command.names(args.source) if",
        "paths = [args.source] if",
        "test_each_relative_part_of_a_source_is_refused_and_made_absolute",
      ),
    ],
  ),
  (
    "data/prepare/output_directory.py",
    "tests/data/prepare/test_output_directory.py",
    [
      (
        "a live worker of an earlier start ends a new one",
        "shutil.rmtree(aside, ignore_errors=True) if",
        "shutil.rmtree(aside) if",
        "test_what_live_workers_write_does_not_stop_a_start",
      ),
    ],
  ),
  (
    "data/prepare/beam.py",
    _BEAM,
    [
      (
        "a worker's death ends the next step too",
        'self._workers, self._died = set(), float("inf")',
        "self._workers = set()",
        "test_a_worker_that_died_in_one_step_does_not_end_the_next",
      ),
      (
        "options that Beam does not know are left to its warning",
        "_refuse_unknown(flags)",
        "pass",
        "test_options_that_beam_would_ignore_or_wait_for_are_refused_before_any_work",
      ),
      (
        "Dask guesses how many parts a worker gets",
        'flags.append("--dask_partition_size=1")',
        "pass",
        "test_short_names_of_runners_are_known_and_dask_gives_each_part_away",
      ),
    ],
  ),
]
