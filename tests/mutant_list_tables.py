"""Faults of tables and borders that no case came near. Columns as in `mutant_list.py`."""

_PROTOCOLS = "tests/finetune/papers/test_protocols.py"
_GLUE = "tests/data/glue/test_glue.py"
_PLAIN = "tests/finetune/own/test_plain.py"

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "finetune/papers/spaces.py",
    _PROTOCOLS,
    [
      (
        "AMOS's RTE is trained for longer",
        '"rte": Cell(32, 4e-5, 5, 0.1)',
        '"rte": Cell(32, 4e-5, 10, 0.1)',
        "test_what_the_authors_found_best_is_what_they_write",
      ),
      (
        "TACO's QNLI has smaller batches",
        '"qnli": Space((32, 64)',
        '"qnli": Space((16, 64)',
        "test_spaces_are_those_of_the_tables",
      ),
      (
        "TACO's small QNLI is trained for longer",
        '"qnli": Cell(64, 5e-5, 4, warmup_steps=200)',
        '"qnli": Cell(64, 5e-5, 6, warmup_steps=200)',
        "test_spaces_are_those_of_the_tables",
      ),
      (
        "a large model's SQuAD has a rate of GLUE's",
        "learning_rates=(7e-6, 1e-5, 2e-5, 3e-5))",
        "learning_rates=(5e-6, 1e-5, 2e-5, 3e-5))",
        "test_spaces_are_those_of_the_tables",
      ),
      (
        "AMOS's highest rate is higher",
        "Space((16, 32), (1e-5, 2e-5, 3e-5, 4e-5, 5e-5)",
        "Space((16, 32), (1e-5, 2e-5, 3e-5, 4e-5, 6e-5)",
        "test_spaces_are_those_of_the_tables",
      ),
    ],
  ),
  (
    "data/glue/tasks.py",
    _GLUE,
    [
      (
        "CoLA of TFDS has its classes exchanged",
        '("unacceptable", "acceptable")',
        '("acceptable", "unacceptable")',
        "test_the_class_of_a_label_of_tfds_is_that_of_the_official_file",
      ),
    ],
  ),
  (
    "data/glue/__init__.py",
    _GLUE,
    [
      (
        "a fraction of rows is rounded down",
        "max(1, round(fraction * count))",
        "max(1, int(fraction * count))",
        "test_a_smaller_fraction_is_a_part_of_a_larger_one_and_of_another_seed_is_another",
      ),
      (
        "rows of TFDS without agreement are not counted",
        "dropped = labels_there.count(None)",
        "dropped = 0",
        "test_rows_of_tfds_without_agreement_are_dropped_and_counted",
      ),
    ],
  ),
  (
    "data/vocabulary/train.py",
    "tests/data/vocabulary/test_vocabulary.py",
    [
      (
        "a piece of WordPiece is there once",
        "min_frequency=2",
        "min_frequency=1",
        "test_a_piece_of_wordpiece_is_there_twice_in_the_text",
      ),
    ],
  ),
  (
    "pretrain/logs/metrics.py",
    "tests/pretrain/report/test_series.py",
    [
      (
        "hours go back where a run was started again",
        'line["step"] > steps[-1]',
        'line["step"] != steps[-1]',
        "test_hours_are_the_steps_over_their_speeds",
      ),
    ],
  ),
  (
    "pretrain/report/series.py",
    "tests/pretrain/report/test_series.py",
    [
      (
        "all runs have the hours of the first",
        "np.interp(steps, *clock)",
        "np.interp(steps, *clocks[0])",
        "test_every_run_has_its_own_tokens_and_hours",
      ),
    ],
  ),
  (
    "pretrain/recipe.py",
    "tests/pretrain/test_recipe.py",
    [
      (
        "selections left out are counted by token",
        "(jnp.sum(corrupted.masking.overflow, dtype=jnp.float32), rows)",
        "(jnp.sum(corrupted.masking.overflow, dtype=jnp.float32), tokens)",
        "test_rates_are_of_tokens_and_what_was_left_out_is_of_rows",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/warm_start.py",
    "tests/pretrain/checkpoints/test_warm_start.py",
    [
      (
        "a model with segments is taken for one without",
        '"num_segments",',
        "",
        "test_equal_arrays_that_would_mean_something_else_are_refused[num_segments]",
      ),
    ],
  ),
  (
    "pretrain/export/official/config.py",
    "tests/pretrain/export/official/test_fit.py",
    [
      (
        "the port's dropouts are exchanged",
        '_rates(config, "hidden_dropout_prob", "attention_probs_dropout_prob")',
        '_rates(config, "attention_probs_dropout_prob", "hidden_dropout_prob")',
        "test_sizes_and_rates_are_read_under_their_names",
      ),
    ],
  ),
  (
    "finetune/squad/decoding.py",
    "tests/finetune/squad/test_decoding.py",
    [
      (
        "the longest answer is one token shorter",
        "(size <= settings.max_answer_length)",
        "(size < settings.max_answer_length)",
        "test_end_is_not_before_start_and_not_too_far",
      ),
    ],
  ),
  (
    "finetune/search/best_model.py",
    "tests/finetune/search/test_save_model.py",
    [
      (
        "a saved head lacks the shift of its numbers",
        "save_model.scale_outputs(trained.params, output_scale, output_shift)",
        "save_model.scale_outputs(trained.params, output_scale)",
        "test_a_saved_head_gives_numbers_on_the_scale_of_the_file",
      ),
    ],
  ),
  (
    "finetune/search/save_model.py",
    "tests/finetune/search/test_save_model.py",
    [
      (
        "a saved head's bias is not scaled",
        'output["bias"] = output["bias"] + np.float32(shift)',
        'output["bias"] = head["output"]["bias"] + np.float32(shift)',
        "test_a_saved_head_gives_numbers_on_the_scale_of_the_file",
      ),
    ],
  ),
  (
    "finetune/own/tagging.py",
    _PLAIN,
    [
      (
        "a word that was cut away is of the first class",
        "of_row[counts[:, 0] == 0, outside] = 1.0",
        "of_row[counts[:, 0] == 0, 0] = 1.0",
        "test_a_long_sentence_loses_words_or_is_read_in_windows",
      ),
    ],
  ),
  (
    "finetune/own/metrics.py",
    _PLAIN,
    [
      (
        "precision of a class is its recall",
        "float(precision[at]), float(recall[at])",
        "float(recall[at]), float(precision[at])",
        "test_scores_by_hand",
      ),
      (
        "a label needs more than a half",
        "chosen = chances >= THRESHOLD",
        "chosen = chances > THRESHOLD",
        "test_scores_by_hand",
      ),
    ],
  ),
  (
    "finetune/own/search.py",
    "tests/finetune/own/test_search.py",
    [
      (
        "answers for the development set lack their shift",
        "* self.task.scale + self.task.shift for",
        "* self.task.scale for",
        "test_answers_and_the_saved_head_are_on_the_scale_of_the_file",
      ),
      (
        "a head is saved without the shift of its numbers",
        "output_shift=self.task.shift",
        "output_shift=0.0",
        "test_answers_and_the_saved_head_are_on_the_scale_of_the_file",
      ),
    ],
  ),
  (
    "lab/studies/statistics.py",
    "tests/lab/studies/test_ablations.py",
    [
      (
        "a bootstrap draws four values",
        "(DRAWS, len(logs))",
        "(DRAWS, 4)",
        "test_the_step_at_which_a_level_is_reached_lies_on_a_line_over_its_logarithm",
      ),
      (
        "a level is reached above it",
        "if points[step] >= level:",
        "if points[step] > level:",
        "test_the_step_at_which_a_level_is_reached_lies_on_a_line_over_its_logarithm",
      ),
    ],
  ),
  (
    "finetune/glue/predictions.py",
    "tests/finetune/glue/test_predictions.py",
    [
      (
        "the digest of a test set has its first sentences twice",
        "[] if split.second is None else [split.second]",
        "[] if split.second is None else [split.first]",
        "test_the_digest_of_a_test_set_is_of_both_sentences_and_of_their_numbers",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/__main__.py",
    "tests/pretrain/checkpoints/test_checkpoints.py",
    [
      (
        "an average is of the oldest steps",
        "steps[-last:]]",
        "steps[:last]]",
        "test_an_average_is_the_mean_and_a_model_of_its_own",
      ),
    ],
  ),
  (
    "finetune/own/answers.py",
    "tests/finetune/own/test_plain.py",
    [
      (
        "a first text is cut to half whatever the second is",
        "max(room // 2, room - len(pair))",
        "room // 2",
        "test_windows_of_a_pair_repeat_the_first_text",
      ),
    ],
  ),
  (
    "finetune/search/session.py",
    "tests/finetune/own/test_search.py",
    [
      (
        "the first seed is 0",
        "range(self.config.seed, self.config.seed + (self",
        "range(0, self.config.seed + (self",
        "test_seeds_begin_with_the_one_that_is_asked_for",
      ),
    ],
  ),
]
