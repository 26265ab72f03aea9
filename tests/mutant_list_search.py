"""Faults of fine-tuning's programs and searches. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "finetune/search/examples.py",
    "tests/finetune/search/test_examples.py",
    [
      (
        "rows of padding count",
        '"weights": np.zeros(batch_size, np.float32)',
        '"weights": np.ones(batch_size, np.float32)',
        "test_a_batch_is_filled_up_with_rows_of_weight_zero",
      ),
      (
        "the last batch of a bucket is left out",
        "return [-(-len(rows) // batch_size) for rows in self.members]",
        "return [len(rows) // batch_size for rows in self.members]",
        "test_an_epoch_takes_every_example_once",
      ),
      (
        "a seed decides the shapes",
        "_permutation(self.steps_per_epoch, self.shape_seed, epoch)",
        "_permutation(self.steps_per_epoch, seed, epoch)",
        "test_seeds_share_the_shapes_and_not_the_examples",
      ),
      (
        "every epoch has the same order of shapes",
        "_permutation(self.steps_per_epoch, self.shape_seed, epoch)",
        "_permutation(self.steps_per_epoch, self.shape_seed, 0)",
        "test_seeds_share_the_shapes_and_not_the_examples",
      ),
    ],
  ),
  (
    "finetune/search/program.py",
    "tests/finetune/search/test_program.py",
    [
      (
        "every run has the first one's learning rate",
        "learning_rate=hyper.learning_rates,",
        "learning_rate=3e-3 + 0.0 * hyper.learning_rates,",
        "test_seeds_and_learning_rates_make_runs_different",
      ),
      (
        "dropout is the same at every step",
        "step_row_keys(hyper.seeds, at, rows)",
        "step_row_keys(hyper.seeds, 0, rows)",
        "test_a_run_is_the_training_step_of_pretraining_with_constants",
      ),
      (
        "a run of padding on the devices is another's result",
        "np.arange(-(-runs.count // num_devices) * num_devices) % runs.count",
        "(np.arange(-(-runs.count // num_devices) * num_devices) + 1) % runs.count",
        "test_every_run_gives_what_it_gives_alone[one_by_one-2]",
      ),
      (
        "the worse runs take their new parameters",
        "jnp.where(is_better, new, old), best, params)",
        "jnp.where(is_better, old, new), best, params)",
        "test_the_better_runs_take_their_new_parameters",
      ),
      (
        "the warm-up of every run is over at once",
        '"warmup_steps": hyper.warmup_steps}',
        '"warmup_steps": 0}',
        "test_a_run_is_the_training_step_of_pretraining_with_constants",
      ),
    ],
  ),
  (
    "finetune/search/texts.py",
    "tests/finetune/glue/test_task.py",
    [
      (
        "outputs stand in the order of batches",
        "of_run[row] = jax.tree",
        "of_run[row - 1] = jax.tree",
        "test_every_example_counts_once_at_any_batch_size[4]",
      ),
    ],
  ),
  (
    "finetune/glue/task.py",
    "tests/finetune/glue/test_task.py",
    [
      (
        "labels are not in the digest",
        'add_to_digest(digest, part.ids, part.fields["labels"])',
        "add_to_digest(digest, part.ids)",
        "test_the_digest_knows_texts_and_labels",
      ),
    ],
  ),
  (
    "finetune/search/sharing.py",
    "tests/finetune/search/test_sharing.py",
    [
      (
        "cells of different epochs share a program",
        "alike.setdefault((cell.batch_size, cell.epochs, cell.num_steps), [])",
        "alike.setdefault((cell.batch_size, 0), [])",
        "test_every_missing_run_is_in_one_program",
      ),
    ],
  ),
  (
    "finetune/search/loop.py",
    "tests/finetune/search/test_loop.py",
    [
      (
        "the last evaluation is the best",
        'return max(evaluations, key=lambda one: one["metrics"][metric], default=None)',
        "return evaluations[-1] if evaluations else None",
        "test_the_best_parameters_are_those_of_the_best_evaluation",
      ),
    ],
  ),
  (
    "finetune/search/results.py",
    "tests/finetune/search/test_results.py",
    [
      (
        "a file of the older format stays beside the files of its runs",
        "    path.unlink()",
        "    path.stat()",
        "test_the_files_of_an_older_format_are_split",
      ),
      (
        "a run that is forgotten stays",
        "self.path(cell, seed).unlink(missing_ok=True)",
        "self.path(cell, seed).stat()",
        "test_what_was_saved_is_finished_and_seeds_can_join[epochs]",
      ),
    ],
  ),
]
