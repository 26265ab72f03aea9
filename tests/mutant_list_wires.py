"""Faults of the wires: a field, a file or a number that does not reach what it is for. Columns as in
`mutant_list.py`.
"""

_SENSITIVE = "test_a_field_changes_what_it_should"

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/run.py",
    "tests/pretrain/test_field_sensitivity.py",
    [
      (
        "microbatches ignored",
        "microbatches=self.config.train.microbatches",
        "microbatches=1",
        f"{_SENSITIVE}[train.microbatches]",
      ),
      (
        "clipping is not passed on",
        "clip_norm=self.config.optimizer.clip_norm",
        "clip_norm=0.0",
        f"{_SENSITIVE}[optimizer.clip_norm]",
      ),
      (
        "of the optimizer only the rate",
        "OptimizerSettings(**config.optimizer.to_dict(), ",
        "OptimizerSettings(learning_rate=config.optimizer.learning_rate, ",
        f"{_SENSITIVE}[optimizer.adam_b1]",
      ),
      (
        "pretraining without dropout",
        "functools.partial(self.recipe.loss_fn, train=True)",
        "functools.partial(self.recipe.loss_fn, train=False)",
        f"{_SENSITIVE}[model.dropout]",
      ),
      (
        "initial values without the seed",
        "initial_key(self.config.seed)",
        "initial_key(0)",
        f"{_SENSITIVE}[seed]",
      ),
      (
        "evaluation draws with the run's seed",
        "step_row_keys(EVAL_SEED, 0, rows)",
        "step_row_keys(self.config.seed, 0, rows)",
        "test_fields_change_nothing_else[mlm-eval]",
      ),
    ],
  ),
  (
    "pretrain/reading/prepared.py",
    "tests/pretrain/test_field_sensitivity.py",
    [
      (
        "data order without the seed",
        "seed=config.seed",
        "seed=0",
        f"{_SENSITIVE}[seed]",
      ),
      (
        "all records whatever the fraction",
        "fraction=config.data.fraction",
        "fraction=1.0",
        f"{_SENSITIVE}[data.fraction]",
      ),
    ],
  ),
  (
    "pretrain/recipe.py",
    "tests/pretrain/test_field_sensitivity.py",
    [
      (
        "sampling temperature ignored",
        "temperature=settings.temperature,",
        "temperature=1.0,",
        f"{_SENSITIVE}[generator.temperature]",
      ),
    ],
  ),
  (
    "pretrain/corruption/mixture.py",
    "tests/pretrain/test_field_sensitivity.py",
    [
      (
        "Gumbel temperature ignored",
        "temperature=choice.gumbel_temperature,",
        "temperature=0.3,",
        f"{_SENSITIVE}[generator.gumbel_temperature]",
      ),
    ],
  ),
  (
    "pretrain/run.py",
    "tests/pretrain/test_wires.py",
    [
      (
        "schedule over twice the run",
        "total_steps=config.train.total_steps)",
        "total_steps=2 * config.train.total_steps)",
        "test_the_learning_rate_is_at_its_end_when_the_run_is[linear-0.001]",
      )
    ],
  ),
  (
    "pretrain/corruption/generator.py",
    "tests/pretrain/test_wires.py",
    [
      (
        "generator has the encoder's dropout",
        "row_random.fold(row_keys, Use.GENERATOR_DROPOUT)",
        "row_random.fold(row_keys, Use.ENCODER_DROPOUT)",
        "test_every_random_thing_in_a_step_has_draws_of_its_own",
      )
    ],
  ),
  (
    "pretrain/corruption/mixture.py",
    "tests/pretrain/test_wires.py",
    [
      (
        "bias is not sharpened",
        "transformed / temperature, biases / temperature",
        "transformed / temperature, biases",
        "test_the_sampling_temperature_sharpens_the_output_bias_too",
      )
    ],
  ),
  (
    "data/manifest.py",
    "tests/pretrain/test_wires.py",
    [
      (
        "digest without the held-out shards",
        "for split in manifest.splits.values() for shard in split.shards",
        'for shard in manifest.splits["train"].shards',
        "test_the_digest_of_the_records_covers_the_held_out_ones",
      )
    ],
  ),
  (
    "pretrain/checkpoints/resume.py",
    "tests/pretrain/test_wires.py",
    [
      (
        f"a run goes on with another {field}",
        '  "train.log_every",',
        f'  "train.log_every", "{field}",',
        "test_a_run_is_continued_with_another_value_of_these_fields_and_of_no_other",
      )
      for field in ("data.fraction", "corruption.mask_rate", "model.dropout", "optimizer.clip_norm")
    ],
  ),
  (
    "configs/roberta_base.py",
    "tests/configs/test_recipes.py",
    [
      (
        "RoBERTa with BERT's mask rule",
        '"mask_rule": "count"',
        '"mask_rule": "bernoulli"',
        "test_the_numbers_of_the_papers_tables_are_in_the_recipes[roberta_base]",
      )
    ],
  ),
  (
    "configs/sizes.py",
    "tests/configs/test_recipes.py",
    [
      (
        "half as many heads in small models",
        '"num_heads": 4,',
        '"num_heads": 2,',
        "test_the_numbers_of_the_papers_tables_are_in_the_recipes[coco_lm_small]",
      )
    ],
  ),
  (
    "pretrain/reading/prepared.py",
    "tests/pretrain/test_wires.py",
    [
      (
        "the child never downloads",
        'command + ["--download"] * download',
        "command",
        "test_text_is_downloaded_by_the_child_process_if_the_flag_says_so[True]",
      )
    ],
  ),
  (
    "pretrain/main.py",
    "tests/pretrain/test_wires.py",
    [
      (
        "pretraining never downloads",
        "download=arguments.download",
        "download=False",
        "test_text_is_downloaded_by_the_child_process_if_the_flag_says_so[True]",
      )
    ],
  ),
  (
    "pretrain/export/stock/config.py",
    "tests/pretrain/export/stock/test_write.py",
    [
      (
        "config.json begins with [SEP]",
        '"bos_token_id": special_ids.cls',
        '"bos_token_id": special_ids.sep',
        "test_sequences_begin_and_end_with_the_ids_that_config_json_names",
      ),
      (
        "config.json ends with [CLS]",
        '"eos_token_id": special_ids.sep',
        '"eos_token_id": special_ids.cls',
        "test_sequences_begin_and_end_with_the_ids_that_config_json_names",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/checkpoint.py",
    "tests/pretrain/checkpoints/test_checkpoint.py",
    [
      (
        "remains of killed saves stay",
        "cleanup_tmp_directories=True",
        "cleanup_tmp_directories=False",
        "test_what_a_killed_save_left_goes_before_the_next_save",
      ),
      (
        "what is not whole stays in the way of saves",
        "self._clear_the_way(log)",
        "pass",
        "test_what_is_not_whole_at_the_number_of_a_later_step_makes_way_once_and_is_kept",
      ),
    ],
  ),
  (
    "pretrain/gradients.py",
    "tests/pretrain/test_step.py",
    [
      (
        "the whole batch at once",
        "if microbatches == 1:",
        "if microbatches >= 1:",
        "test_microbatches_change_nothing_but_rounding[2]",
      )
    ],
  ),
  (
    "pretrain/gradients.py",
    "tests/pretrain/mesh/test_sharding.py",
    [
      (
        "microbatches on one device after another",
        'sharding.constrain(parts, None, "batch", ',
        'sharding.constrain(parts, "batch", None, ',
        "test_every_microbatch_is_cut_along_data_and_fsdp",
      )
    ],
  ),
  (
    "pretrain/mesh/device_program.py",
    "tests/pretrain/mesh/test_collectives.py",
    [
      (
        "kernels gathered in float32",
        "path: leaf.astype(dtype)",
        "path: leaf.astype(jnp.float32)",
        "test_in_bfloat16_kernels_of_layers_are_gathered_in_half_the_bytes_and_reduced_in_float32",
      ),
      (
        "groups gathered from all devices",
        "copies = devices if size % number else size // number",
        "copies = devices",
        "test_groups_on_two_devices_exchange_rows_with_each_other_alone",
      ),
      (
        "whole groups gathered all the same",
        "if number % size == 0:",
        "if number > size:",
        "test_contrast_of_whole_groups_exchanges_nothing_more",
      ),
    ],
  ),
  (
    "pretrain/mesh/sharding.py",
    "tests/pretrain/mesh/test_sharding.py",
    [
      (
        "position tables whole on every device",
        '(position|segment)/embedding", (None, "embed")',
        '(position|segment)/embedding", (None, None)',
        "test_paths_lie_where_the_table_says[encoder/embeddings/position/embedding-2-spec1]",
      )
    ],
  ),
]
