"""Faults that stay unseen where two numbers are equal in every case. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "finetune/search/examples.py",
    "tests/finetune/search/test_examples.py",
    [
      (
        "every epoch has the batches of the first",
        "_permutation(len(rows), seed, epoch, bucket)",
        "_permutation(len(rows), seed, bucket)",
        "test_seeds_share_the_shapes_and_not_the_examples",
      ),
    ],
  ),
  (
    "finetune/own/problems.py",
    "tests/finetune/own/test_search.py",
    [
      (
        "a tagger learns every piece of a word",
        "(batch[tagging.WORD] > 0)",
        '(batch["ids"] != pad_id)',
        "test_a_tagger_learns_from_the_first_piece_of_every_word_alone",
      ),
    ],
  ),
  (
    "data/output/parts.py",
    "tests/data/output/test_output.py",
    [
      (
        "a digest of rows forgets the parts before",
        "hashed = hashlib.sha256(before.encode())",
        "hashed = hashlib.sha256()",
        "test_rows_that_changed_since_they_were_answered_are_noticed",
      ),
    ],
  ),
  (
    "data/prepare/pipeline.py",
    "tests/data/prepare/test_prepare.py",
    [
      (
        "used and held out are decided by one number",
        'document_fraction(document, "fraction", job.seed)',
        'document_fraction(document, "heldout", job.seed)',
        "test_of_a_fraction_of_the_documents_the_same_share_is_held_out",
      ),
    ],
  ),
  (
    "finetune/prompt/data.py",
    "tests/finetune/prompt/test_data.py",
    [
      (
        "MRPC is judged by accuracy",
        '"mrpc": "f1", ',
        "",
        "test_runs_are_judged_by_the_metrics_of_lm_bff",
      ),
    ],
  ),
  (
    "finetune/own/load.py",
    "tests/finetune/own/test_load.py",
    [
      (
        "numbers are scaled by the development set's",
        "config.own.targets, parts[0].classes,",
        "config.own.targets, parts[1].classes,",
        "test_numbers_are_scaled_by_those_of_the_training_rows",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/warm_start.py",
    "tests/pretrain/checkpoints/test_init_from.py",
    [
      (
        "infinite weights start a run",
        "if not np.isfinite(array).all():",
        "if np.isnan(array).any():",
        "test_parameters_that_are_not_finite_are_refused[-inf]",
      ),
    ],
  ),
  (
    "finetune/own/metrics.py",
    "tests/finetune/own/test_plain.py",
    [
      (
        "precision of entities is their recall",
        '"precision": found.precision, "recall": found.recall',
        '"precision": found.recall, "recall": found.precision',
        "test_entities_count_where_kind_and_borders_are_right",
      ),
      (
        "precision of a kind of entity is its recall",
        '"precision": strict.precision, "recall": strict.recall',
        '"precision": strict.recall, "recall": strict.precision',
        "test_entities_count_where_kind_and_borders_are_right",
      ),
    ],
  ),
  (
    "pretrain/export/stock/config.py",
    "tests/pretrain/export/stock/test_write.py",
    [
      (
        "an export's attention has the other dropout",
        '"attention_probs_dropout_prob": config.attention_dropout',
        '"attention_probs_dropout_prob": config.dropout',
        "test_sizes_have_the_names_that_transformers_gives_them",
      ),
      (
        "an import's attention has the other dropout",
        '_number(config, "attention_probs_dropout_prob", 0.1)',
        '_number(config, "hidden_dropout_prob", 0.1)',
        "test_sizes_have_the_names_that_transformers_gives_them",
      ),
    ],
  ),
  (
    "pretrain/reading/batches.py",
    "tests/pretrain/reading/test_batches.py",
    [
      (
        "a batch that is read again ignores skips",
        "at, size = position(step, self._skips)",
        "at, size = step",
        "test_every_step_gets_its_batch[True-24-3]",
      ),
    ],
  ),
  (
    "pretrain/recipe.py",
    "tests/pretrain/test_recipe.py",
    [
      (
        "mixture weights count slots without a token",
        "jnp.sum(weights * slot_weights[..., None], axis=(0, 1))",
        "jnp.sum(weights, axis=(0, 1))",
        "test_mixture_weights_are_means_over_the_tokens_that_were_chosen",
      ),
      (
        "a head's key is its place among the others",
        "list(OBJECTIVES).index(name)",
        "list(self.objectives).index(name)",
        "test_an_objective_switched_off_does_not_change_the_initial_values_of_the_others",
      ),
    ],
  ),
  (
    "pretrain/pod/joining.py",
    "tests/pretrain/pod/test_peers.py",
    [
      (
        "the code of pretraining is not compared",
        'for part in ("data", "pretrain"):',
        'for part in ("data",):',
        "test_the_digest_of_the_code_is_of_all_that_trains",
      ),
      (
        "a field that process 0 lacks is not compared",
        "for name in sorted({*found, *expected})",
        "for name in sorted(expected)",
        "test_what_differs_between_processes_is_named_by_all",
      ),
    ],
  ),
  (
    "lab/analysis/space.py",
    "tests/lab/analysis/test_analyses.py",
    [
      (
        "the area is of random pairs above similar ones",
        'area_between(cosines["similar"], cosines["random"])',
        'area_between(cosines["random"], cosines["similar"])',
        "test_the_measured_area_is_how_often_a_similar_pair_has_the_larger_cosine",
      ),
    ],
  ),
  (
    "pretrain/report/series.py",
    "tests/pretrain/report/test_series.py",
    [
      (
        "all runs have the tokens of the first",
        "scales = [run.tokens_per_step / size for run in runs]",
        "scales = [runs[0].tokens_per_step / size for run in runs]",
        "test_every_run_has_its_own_tokens_and_hours",
      ),
    ],
  ),
  (
    "pretrain/export/card/history.py",
    "tests/pretrain/export/card/test_history.py",
    [
      (
        "tokens seen are those of one row",
        "{step * batch_size * data['length']:,}",
        "{step * data['length']:,}",
        "test_numbers_of_the_run_are_those_of_its_config",
      ),
    ],
  ),
  (
    "pretrain/mesh/device_program.py",
    "tests/pretrain/mesh/test_collectives.py",
    [
      (
        "a group that ends in the middle of a device is cut",
        "if number % size == 0:",
        "if number >= size:",
        "test_groups_that_end_in_the_middle_of_a_device_have_all_their_rows",
      ),
    ],
  ),
  (
    "finetune/search/session.py",
    "tests/finetune/own/test_search.py",
    [
      (
        "the test set has as many seeds as a cell",
        "self.config.search.num_test_seeds or self.protocol.num_test_seeds",
        "self.config.search.num_seeds or self.protocol.num_test_seeds",
        "test_seeds_begin_with_the_one_that_is_asked_for",
      ),
    ],
  ),
]
