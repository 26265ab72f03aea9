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
        "jax.random.key(self.config.seed)",
        "jax.random.key(0)",
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
    "pretrain/prepared.py",
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
    "pretrain/prepared.py",
    "tests/pretrain/test_wires.py",
    [
      (
        "digest without the held-out shards",
        "for split in content.splits.values() for shard in split.shards",
        'for shard in content.splits["train"].shards',
        "test_the_digest_of_the_records_covers_the_held_out_ones",
      )
    ],
  ),
  (
    "pretrain/resume.py",
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
    "finetune/squad/search.py",
    "tests/finetune/squad/test_search.py",
    [
      (
        f"{field} ignored",
        f"{field}=asked.{field}",
        f"{field}=4",
        "test_every_field_of_squad_reaches_what_it_is_for",
      )
      for field in ("max_answer_length", "n_best", "stride", "max_query_length")
    ]
    + [
      (
        "mask of questions ignored",
        "self.config.squad.mask_query",
        "True",
        "test_the_mask_of_question_and_separators_is_read_only_if_asked_for[False]",
      )
    ],
  ),
  (
    "finetune/prompt/search.py",
    "tests/finetune/prompt/test_runs.py",
    [
      (f"{name} of prompts ignored", original, fault, "test_every_field_of_prompts_reaches_what_it_is_for")
      for name, original, fault in (
        ("length", "given.max_length or writer.template.max_length", "32"),
        ("sets of demonstrations", "given.num_samples or writer", "writer"),
        ("words", "(TEMPLATES[name], self.config.prompt.words)", '(TEMPLATES[name], "")'),
        ("steps", "num_steps=given.num_steps)", "num_steps=20)"),
        ("evaluations", "self.config.prompt.eval_every, data", "4, data"),
      )
    ],
  ),
  (
    "finetune/prompt/data.py",
    "tests/finetune/prompt/test_runs.py",
    [
      (
        "test rows of prompts ignored",
        "config.data.directory, config.prompt.test_rows",
        "config.data.directory, 0",
        "test_every_field_of_prompts_reaches_what_it_is_for",
      )
    ]
    + [
      (name, original, fault, "test_dev_and_test_sets_have_as_many_demonstrations_each_of_its_own_split")
      for name, original, fault in (
        (
          "dev sets have the first split's demonstrations",
          "writer, part, pools[seed], ",
          "writer, part, next(iter(pools.values())), ",
        ),
        ("dev sets are drawn with one seed", "pools[seed], seed=seed", "pools[seed], seed=0"),
        (
          "tests have the first split's demonstrations",
          "test_set, self.pools[split], ",
          "test_set, next(iter(self.pools.values())), ",
        ),
        (
          "tests have one set of demonstrations",
          '{"num_samples": self.lengths.num_samples, ',
          '{"num_samples": 1, ',
        ),
      )
    ],
  ),
  (
    "finetune/main.py",
    "tests/finetune/test_wires.py",
    [
      (
        "SQuAD starts a GLUE search",
        '("finetune.squad.search", "Squad")',
        '("finetune.glue.search", "Glue")',
        "test_a_config_starts_the_search_of_its_kind_and_passes_on_whether_to_download[True-squad]",
      ),
      (
        "every kind is GLUE",
        "KINDS[str(arguments.config.kind)]",
        'KINDS["glue"]',
        "test_a_config_starts_the_search_of_its_kind_and_passes_on_whether_to_download[False-demo]",
      ),
      (
        "fine-tuning never downloads",
        "(session, download=arguments.download)",
        "(session, download=False)",
        "test_a_config_starts_the_search_of_its_kind_and_passes_on_whether_to_download[True-glue]",
      ),
    ],
  ),
  (
    "finetune/search/best_model.py",
    "tests/finetune/test_wires.py",
    [
      (
        "best median for every protocol",
        "search.plan.metric, search.plan.summary)",
        'search.plan.metric, "median")',
        "test_the_model_is_of_the_cell_that_is_best_by_the_protocols_summary[mean-2e-05-2-0.9]",
      )
    ],
  ),
  (
    "finetune/glue/search.py",
    "tests/finetune/test_wires.py",
    [
      (
        "leaderboard's run from the search's seeds",
        "seeds=self.session.test_seeds if output.predict else ()",
        "seeds=()",
        "test_the_leaderboards_run_is_the_best_of_all_the_test_seeds[True-4]",
      )
    ],
  ),
  (
    "finetune/glue/predictions.py",
    "tests/finetune/glue/test_predictions.py",
    [
      (
        "STS-B handed in from 0 to 1",
        'session.protocol.stsb_divisor if key == "stsb" else 1.0',
        "1.0",
        "test_scores_of_stsb_are_handed_in_on_the_scale_that_they_were_divided_from",
      )
    ],
  ),
  (
    "data/prepare/packing.py",
    "tests/data/prepare/test_packing.py",
    [
      (
        "a document without tokens leaves a border",
        'if entries and sentences and mode != "eos":',
        'if entries and mode != "eos":',
        "test_a_document_without_tokens_leaves_no_trace[complete]",
      )
    ],
  ),
  (
    "data/prepare/preparation.py",
    "tests/data/prepare/test_prepare.py",
    [
      (
        "another seed is the same preparation",
        'SETTINGS += ("seed", ',
        "SETTINGS += (",
        "test_a_preparation_with_another_value_of_these_flags_is_another_one",
      )
    ],
  ),
  (
    "data/prepare/pipeline.py",
    "tests/data/prepare/test_prepare.py",
    [
      (
        "vocabulary of held-out text too",
        'for document in chunk["train"]:',
        'for document in chunk["train"] + chunk["heldout"]:',
        "test_the_vocabulary_is_trained_on_training_documents_alone_which_the_seed_decides",
      ),
      (
        "the same documents held out for every seed",
        'document_fraction(document, "heldout", job.seed)',
        'document_fraction(document, "heldout", 0)',
        "test_the_vocabulary_is_trained_on_training_documents_alone_which_the_seed_decides",
      ),
    ],
  ),
  (
    "data/sources.py",
    "tests/data/test_sources.py",
    [
      (
        "TFDS as far as the first shard",
        "for shard in range(num_shards)]",
        "for shard in range(1)]",
        "test_every_shard_of_a_tfds_set_is_read_and_no_two_by_one_unit",
      ),
      (
        "every shard of a Task is its first",
        'Unit("seqio", task, shard, num_shards, keep)',
        'Unit("seqio", task, 0, num_shards, keep)',
        "test_every_shard_of_a_seqio_task_is_read_and_no_two_by_one_unit",
      ),
      (
        "TFDS is never downloaded",
        "name, download=request.download)",
        "name, download=False)",
        "test_data_is_downloaded_if_the_flag_says_so[True-tfds:books]",
      ),
    ],
  ),
  (
    "data/seqio_tasks.py",
    "tests/data/test_sources.py",
    [
      (
        "seqio reads the first shard alone",
        "seqio.ShardInfo(shard, num_shards)",
        "seqio.ShardInfo(0, num_shards)",
        "test_every_shard_of_a_seqio_task_is_read_and_no_two_by_one_unit",
      )
    ],
  ),
  (
    "data/tfds_reader.py",
    "tests/data/test_sources.py",
    [
      (
        "TFDS reads the first shard alone",
        "[{start}shard:{stop}shard]",
        "[0shard:1shard]",
        "test_every_shard_of_a_tfds_set_is_read_and_no_two_by_one_unit",
      )
    ],
  ),
  (
    "pretrain/prepared.py",
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
    "pretrain/checkpoint.py",
    "tests/pretrain/test_checkpoint.py",
    [
      (
        "remains of killed saves stay",
        "cleanup_tmp_directories=True",
        "cleanup_tmp_directories=False",
        "test_what_a_killed_save_left_goes_before_the_next_save",
      )
    ],
  ),
  (
    "pretrain/step.py",
    "tests/pretrain/test_sharding.py",
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
    "pretrain/sharding.py",
    "tests/pretrain/test_sharding.py",
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
