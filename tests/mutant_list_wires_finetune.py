"""Faults of the wires of fine-tuning; see `mutant_list_wires.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "finetune/squad/windows.py",
    "tests/finetune/squad/test_search.py",
    [
      (
        f"{field} ignored",
        f"{field}=asked.{field}",
        f"{field}=4",
        "test_every_field_of_squad_reaches_what_it_is_for",
      )
      for field in ("max_answer_length", "n_best", "stride", "max_query_length")
    ],
  ),
  (
    "finetune/squad/search.py",
    "tests/finetune/squad/test_search.py",
    [
      (
        f"{field} ignored",
        f"asked.{field}, ",
        f'"{part}-v2.0.json", ',
        "test_every_field_of_squad_reaches_what_it_is_for",
      )
      for field, part in (("train_file", "train"), ("dev_file", "dev"))
    ]
    + [
      (
        "mask of questions ignored",
        "self.data, self.config.squad.mask_query",
        "self.data, True",
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
        ("length", "settings.max_length or writer.template.max_length", "32"),
        ("sets of demonstrations", "settings.num_samples or writer", "writer"),
        ("words", "(TEMPLATES[name], self.config.prompt.words)", '(TEMPLATES[name], "")'),
        ("steps", "num_steps=grid.num_steps)", "num_steps=20)"),
        ("evaluations", "self.config.prompt.eval_every, data", "4, data"),
        ("batch sizes", "product(grid.batch_sizes, ", "product((2,), "),
        ("learning rates", ", grid.learning_rates)", ", (1e-3, 5e-2))"),
      )
    ],
  ),
  (
    "finetune/prompt/data.py",
    "tests/finetune/prompt/test_runs.py",
    [
      (f"{name} of prompts ignored", original, fault, "test_every_field_of_prompts_reaches_what_it_is_for")
      for name, original, fault in (
        ("shots", "task, k=prompt.shots, ", "task, k=2, "),
        ("splits", "seed=seed) for seed in prompt.splits}", "seed=seed) for seed in (13, 21)}"),
      )
    ]
    + [
      (name, original, fault, "test_dev_and_test_sets_have_as_many_demonstrations_each_of_its_own_split")
      for name, original, fault in (
        (
          "dev sets have the first split's demonstrations",
          "writer, split, pools[seed], ",
          "writer, split, next(iter(pools.values())), ",
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
    "finetune/prompt/data.py",
    "tests/finetune/prompt/test_search.py",
    [
      (
        "shots that are drawn ignored",
        "kshot.sample(train, prompt.shots, seed)",
        "kshot.sample(train, 2, seed)",
        "test_splits_are_drawn_where_no_folder_of_draws_is_given",
      )
    ],
  ),
  (
    "finetune/settings.py",
    "tests/finetune/test_wires.py",
    [
      (
        "SQuAD starts a GLUE search",
        '("finetune.squad.search", "Squad")',
        '("finetune.glue.search", "Glue")',
        "test_a_config_starts_the_search_of_its_kind_and_passes_on_whether_to_download[True-squad]",
      ),
    ],
  ),
  (
    "finetune/main.py",
    "tests/finetune/test_wires.py",
    [
      (
        "every kind is GLUE",
        "KINDS[str(config.kind)]",
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
    "finetune/search/plan.py",
    "tests/finetune/test_wires.py",
    [
      (name, original, fault, "test_every_run_has_the_rate_and_the_steps_of_its_cell")
      for name, original, fault in (
        (
          "all runs of a program have the first cell's rate",
          "[cell.learning_rate for cell, _ in runs]",
          "[runs[0][0].learning_rate for _ in runs]",
        ),
        (
          "runs of a plan without warm-up",
          "warmup_steps=np.asarray(warmups, np.int32)",
          "warmup_steps=np.zeros(len(warmups), np.int32)",
        ),
        (
          "all runs of a plan end with the first",
          "total_steps=np.asarray(steps, np.int32)",
          "total_steps=np.full(len(steps), steps[0], np.int32)",
        ),
      )
    ],
  ),
  (
    "finetune/search/search.py",
    "tests/finetune/test_field_sensitivity.py",
    [
      (
        "microbatches of fine-tuning ignored",
        "microbatches=train.microbatches",
        "microbatches=1",
        "test_a_field_changes_what_it_should_and_nothing_else[train.microbatches]",
      )
    ],
  ),
  (
    "finetune/search/session.py",
    "tests/finetune/test_wires.py",
    [
      (
        "optimizer of the protocol ignored",
        "      protocol.optimizer,",
        "      {},",
        "test_runs_are_trained_with_the_optimizer_of_their_protocol[taco]",
      ),
      (
        "the whole space whatever cells are asked for",
        'if search.cells != "all":',
        "if not search.cells:",
        "test_the_cells_are_one_that_suits_the_width_the_authors_best_or_their_whole_space[one]",
      ),
      (
        "as many seeds of one cell as of a search",
        '1 if self.config.search.cells == "one" else ',
        "",
        "test_the_cells_are_one_that_suits_the_width_the_authors_best_or_their_whole_space[one]",
      ),
      (
        "the report is beside the checkpoint's own row alone",
        "self.config.output.compare_with or own",
        "own",
        "test_the_papers_rows_stand_in_the_report_beside_ours[amos_base]",
      ),
      (
        "the newest step whichever is named",
        "      step=step,",
        "      step=None,",
        "test_the_step_and_the_vocabulary_are_those_that_are_named",
      ),
    ],
  ),
  (
    "finetune/own/search.py",
    "tests/finetune/own/test_search.py",
    [
      (
        "label smoothing ignored",
        "smoothing=own.label_smoothing",
        "smoothing=0.0",
        "test_the_loss_of_classes_is_smoothed_and_weighted_as_asked[smoothed]",
      ),
      (
        "class weights ignored",
        'balanced=own.class_weights == "balanced"',
        "balanced=False",
        "test_the_loss_of_classes_is_smoothed_and_weighted_as_asked[balanced]",
      ),
    ],
  ),
  (
    "finetune/own/load.py",
    "tests/finetune/own/test_search.py",
    [
      (
        "the second text ignored",
        "text_pair=data.text_pair",
        'text_pair=""',
        "test_every_field_of_the_columns_reaches_what_it_is_for",
      ),
      (
        "long texts are cut whatever is asked for",
        "config.data.long, separator)",
        '"cut", separator)',
        "test_every_field_of_the_columns_reaches_what_it_is_for",
      ),
      (
        "the module of a Task ignored",
        '"module": config.data.module',
        '"module": ""',
        "test_a_data_set_is_looked_for_in_the_folder_and_the_module_that_are_named",
      ),
    ],
  ),
  (
    "finetune/own/problems.py",
    "tests/finetune/own/test_search.py",
    [
      (
        "a label of several counts as much as all rows to its own",
        "(len(wanted) - count) / max(count, 1)",
        "len(wanted) / max(count, 1)",
        "test_the_loss_of_several_labels_is_smoothed_and_weighted_as_asked",
      )
    ],
  ),
]
