"""Faults of what is around the mathematics: recipe, step, optimizer, data. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/recipe.py",
    "tests/pretrain/test_recipe.py",
    [
      (
        "divided by the microbatch's totals",
        "total = totals[name]",
        "total = of_these_rows[name]",
        "test_two_microbatches_of_whole_groups_equal_the_whole_batch",
      ),
    ],
  ),
  (
    "pretrain/recipe.py",
    "tests/pretrain/test_recipe_gradients.py",
    [
      (
        "frozen token table is trained",
        "jax.lax.stop_gradient(_token_table(params))",
        "_token_table(params)",
        "test_frozen_embeddings_get_exactly_no_gradient_and_the_rest_does",
      ),
      (
        "AMOS looks its tokens up again",
        "if draws.embeddings is not None:",
        "if draws.embeddings is None:",
        "test_amos_trains_the_generators_trunk_and_mixture_through_rtd_and_its_head_not_at_all",
      ),
    ],
  ),
  (
    "pretrain/recipe.py",
    "tests/pretrain/test_recipe_draws.py",
    [
      (
        "sampling pass has dropout",
        "output = generator.run(*fixed, *arguments, row_keys=None)",
        "output = generator.run(*fixed, *arguments, row_keys=keys)",
        "test_samples_come_from_a_pass_without_dropout_unless_the_mode_says_otherwise[eval-True]",
      ),
      (
        "generator does not train the table",
        "table = generator.token_table(own, shared, settings)",
        "table = jax.lax.stop_gradient(generator.token_table(own, shared, settings))",
        "test_the_generators_loss_trains_every_row_of_the_shared_table",
      ),
    ],
  ),
  (
    "pretrain/objectives/scl.py",
    "tests/pretrain/test_recipe_draws.py",
    [
      (
        "crop has the encoder's dropout",
        "row_random.fold(row_keys, Use.CROP_DROPOUT)",
        "row_random.fold(row_keys, Use.ENCODER_DROPOUT)",
        "test_the_two_views_of_a_sequence_have_dropout_of_their_own",
      ),
    ],
  ),
  (
    "pretrain/step.py",
    "tests/pretrain/test_step.py",
    [
      (
        "an update that is not finite",
        "functools.partial(jnp.where, is_good)",
        "functools.partial(jnp.where, True)",
        "test_a_poisoned_loss_changes_nothing_but_the_counters[nan]",
      ),
      (
        "parameters that leave the range",
        "is_good &= update.stays_finite(state.params, state.opt_state, norm, rate)",
        "update.stays_finite(state.params, state.opt_state, norm, rate)",
        "test_parameters_beyond_the_range_of_float32_are_not_applied",
      ),
    ],
  ),
  (
    "pretrain/mesh/device_program.py",
    "tests/pretrain/test_gradients.py",
    [
      (
        "gradients of cast kernels halved",
        "cotangent = cotangent.astype(jnp.float32)",
        "cotangent = cotangent.astype(jnp.float32) / 2",
        "test_kernels_cast_once_a_step_give_the_same_loss_and_float32_gradients",
      ),
    ],
  ),
  (
    "pretrain/gradients.py",
    "tests/pretrain/test_step.py",
    [
      (
        "mean of the microbatches",
        "lambda sums, part: (jax.tree.map(jnp.add, sums, function(part)), None)",
        "lambda s, p: (jax.tree.map(lambda a, b: a + b / 2, s, function(p)), None)",
        "test_microbatches_change_nothing_but_rounding[2]",
      ),
    ],
  ),
  (
    "pretrain/optim.py",
    "tests/pretrain/test_optim.py",
    [
      (
        "eps under the root",
        "factor * m / (jnp.sqrt(v) + added)",
        "factor * m / jnp.sqrt(v + added)",
        "test_eps_placement_is_what_its_name_says",
      ),
      (
        "first learning rate is not 0",
        "jnp.minimum(step, warmup_steps) / jnp.maximum(warmup_steps, 1)",
        "jnp.minimum(step + 1, warmup_steps) / jnp.maximum(warmup_steps, 1)",
        "test_first_update_of_a_warmup_changes_nothing",
      ),
      (
        "biases and norms decay",
        'mask = _no_bias_norm_mask if settings.decay == "no_bias_norm" else None',
        "mask = None",
        "test_decay_no_bias_norm_spares_biases_and_norms",
      ),
      (
        "clipping lengthens short gradients",
        "coefficient = jnp.minimum(1.0, max_norm / (norm + 1e-6))",
        "coefficient = max_norm / (norm + 1e-6)",
        "test_clipping_scales_only_what_is_too_long",
      ),
    ],
  ),
  (
    "pretrain/optim.py",
    "tests/pretrain/test_optim_guard.py",
    [
      (
        "moments of an update that is left out",
        "jnp.where(is_good, decay * old + (1 - decay) * new, old)",
        "decay * old + (1 - decay) * new",
        "test_an_update_that_is_not_good_returns_the_state_bit_for_bit[nothing-nan]",
      ),
      (
        "updates that are left out are counted",
        "new if new.ndim else jnp.where(is_good, new, old)",
        "new",
        "test_an_update_that_is_not_good_returns_the_state_bit_for_bit[nothing-nan]",
      ),
      (
        "rates are no part of the reach",
        "parameter + jnp.abs(learning_rate) * step < 2.0**120",
        "parameter + step < 2.0**120",
        "test_at_rates_in_use_nothing_is_read_and_beyond_them_doubtful_parameters_are_refused",
      ),
      (
        "rates in use are any",
        "scale < 2.0**100 / direction",
        "scale < 2.0**140 / direction",
        "test_at_rates_in_use_nothing_is_read_and_beyond_them_doubtful_parameters_are_refused",
      ),
    ],
  ),
  (
    "pretrain/run.py",
    "tests/pretrain/test_run.py",
    [
      (
        "keys of a batch forget the step",
        "step_row_keys(self.config.seed, at, rows)",
        "step_row_keys(self.config.seed, 0, rows)",
        "test_keys_of_a_training_batch_are_a_function_of_seed_step_and_row",
      ),
    ],
  ),
  (
    "pretrain/evaluate.py",
    "tests/pretrain/test_evaluate.py",
    [
      (
        "padded rows are counted",
        "pad_id=run.recipe.tokens.pad",
        "pad_id=run.recipe.tokens.unk",
        "test_every_row_is_counted_once_and_padded_rows_never[8-1]",
      ),
    ],
  ),
  (
    "pretrain/run.py",
    "tests/pretrain/test_evaluate.py",
    [
      (
        "evaluation has dropout",
        "train=False",
        "train=True",
        "test_evaluation_has_no_dropout",
      ),
    ],
  ),
  (
    "pretrain/checkpoints/resume.py",
    "tests/pretrain/checkpoints/test_resume.py",
    [
      (
        "another seed may continue a run",
        '"recipe",',
        '"recipe", "seed",',
        "test_a_field_that_changes_the_meaning_of_the_state_is_refused[fields3-seed: 0 -> 1]",
      ),
    ],
  ),
  (
    "data/prepare/packing.py",
    "tests/data/prepare/test_packing.py",
    [
      (
        "no border between documents",
        "entries.append(())",
        "pass",
        "test_complete_fills_blocks_with_whole_sentences_across_documents",
      ),
    ],
  ),
  (
    "data/prepare/pipeline.py",
    "tests/data/prepare/test_prepare.py",
    [
      (
        "held-out documents are trained on",
        "chunk[split].append(document_sentences)",
        '[chunk[name].append(document_sentences) for name in SPLITS if name in (split, "train")]',
        "test_every_token_arrives_once_and_documents_stay_on_one_side",
      ),
    ],
  ),
  (
    "data/records.py",
    "tests/data/test_records.py",
    [
      (
        "rows are filled with id 0",
        "np.full((len(records), self.length), self.pad, np.int32)",
        "np.full((len(records), self.length), 0, np.int32)",
        "test_a_batch_is_padded_ids",
      ),
      (
        "every host reads the first rows",
        "rows is None else rows)]",
        "rows is None else range(len(rows)))]",
        "test_hosts_read_their_rows_of_the_same_global_batch",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_at.py",
    "tests/pretrain/models/test_last_layer.py",
    [
      (
        "the last layer drops other probabilities",
        "part=Part(positions, 1, length)",
        "part=Part(positions, 1, length + 1)",
        "test_states_and_gradients_equal_those_of_the_whole_layer_with_its_dropout[dropout]",
      ),
    ],
  ),
  (
    "pretrain/reading/batches.py",
    "tests/pretrain/reading/test_batches.py",
    [
      (
        "steps that are read together take one step's rows",
        "position(step, self._skips) for step in range(first,",
        "position(first, self._skips) for step in range(first,",
        "test_every_step_gets_its_batch[True-24-3]",
      ),
    ],
  ),
]
