"""Faults of the mathematics: losses, corruption, models, draws. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/ops/vocab/mixture_sampling.py",
    "tests/pretrain/ops/vocab/test_mixture_sampling.py",
    [
      (
        "reversal has the other sign",
        "d_onehot = settings.multiplier * vocab_products(",
        "d_onehot = -settings.multiplier * vocab_products(",
        "test_values_and_gradients_equal_the_plain_composition[{}-shared_bias]",
      ),
      (
        "no temperature in the backward pass",
        "scores = scores / temperature",
        "scores = scores * 1.0",
        "test_values_and_gradients_equal_the_plain_composition[{}-shared_bias]",
      ),
      (
        "gradient reaches the heads",
        "adversarial_mlm = settings.adv_mlm_multiplier != 0.0",
        "settings, adversarial_mlm = settings._replace(adv_mlm_multiplier=1.0), True",
        "test_heads_get_exactly_no_gradient_and_weights_do",
      ),
      (
        "gradient of the table is reversed",
        "ids, cotangent.astype(jnp.float32))",
        "ids, settings.multiplier * cotangent.astype(jnp.float32))",
        "test_the_table_gets_the_gradient_of_an_ordinary_look_up",
      ),
    ],
  ),
  (
    "pretrain/corruption/generator.py",
    "tests/pretrain/corruption/test_generator.py",
    [
      (
        "blocks are not detached",
        "detach_after=inner if settings.detach_blocks else (),",
        "detach_after=(),",
        "test_each_block_of_layers_is_trained_by_its_own_head_only",
      ),
      (
        "only the last head has a loss",
        "rows = heads_of_it.reshape(together * batch, *heads_of_it.shape[2:])",
        "rows = jnp.concatenate([heads_of_it[-1]] * together)",
        "test_the_loss_is_the_sum_over_heads_and_metrics_name_the_layers",
      ),
    ],
  ),
  (
    "pretrain/corruption/masking.py",
    "tests/pretrain/corruption/test_masking.py",
    [
      (
        "count rounds the wrong way",
        "rounds_up = uniform < jnp",
        "rounds_up = uniform > jnp",
        "test_count_rule_takes_fifteen_per_cent_rounded_up_or_down_by_chance",
      ),
      (
        "[SEP] may be masked",
        '"none": (tokens.pad, tokens.cls, tokens.sep, tokens.mask),',
        '"none": (tokens.pad, tokens.cls, tokens.mask),',
        "test_special_tokens_are_chosen_exactly_as_mask_special_says[count-none-touched2]",
      ),
      (
        "capacity is one slot short",
        "return math.ceil(rate * length)",
        "return math.floor(rate * length)",
        "test_capacities_are_the_documented_ones",
      ),
      (
        "80/20/0 for 80/10/10",
        "is_random = kind >= 1.0 - settings.random_token_rate",
        "is_random = kind >= settings.mask_token_rate",
        "test_bernoulli_rule_chooses_independently_and_mixes_eighty_ten_ten",
      ),
      (
        "overflow is masked all the same",
        "row_keys, ids, kept, tokens), positions, weights, kept, overflow)",
        "row_keys, ids, selected, tokens), positions, weights, kept, overflow)",
        "test_overflowing_selections_are_neither_masked_nor_predicted_and_counted",
      ),
    ],
  ),
  (
    "pretrain/ops/positions.py",
    "tests/pretrain/ops/test_positions.py",
    [
      (
        "unused slots have a weight",
        "(positions < length).astype",
        "(positions <= length).astype",
        "test_gather_gives_ascending_positions_weights_and_an_unused_marker",
      ),
    ],
  ),
  (
    "pretrain/corruption/cropping.py",
    "tests/pretrain/corruption/test_cropping.py",
    [
      (
        "no crop begins at the last place",
        "lengths - sizes + 1)",
        "lengths - sizes)",
        "test_starts_are_uniform_over_every_place_the_crop_fits",
      ),
    ],
  ),
  (
    "pretrain/losses.py",
    "tests/pretrain/test_losses.py",
    [
      (
        "stop-gradient of clm removed",
        "copy_logits = jax.lax.stop_gradient(copy_logits)",
        "copy_logits = copy_logits.astype(jnp.float32)",
        "test_stop_gradient_blocks_the_copy_logits_exactly_and_only_when_asked[mixture]",
      ),
      (
        "everything can be copied",
        "return jnp.where(can_copy, jnp.logaddexp(copied, generated), generated)",
        "return jnp.logaddexp(jax.nn.log_sigmoid(copy_logits), generated)",
        "test_clm_mixture_adds_the_copy_probability_only_where_the_input_is_the_original[True]",
      ),
      (
        "mean for sum",
        "return -jnp.sum(log_probs.astype(jnp.float32) * weights)",
        "return -jnp.mean(log_probs.astype(jnp.float32) * weights)",
        "test_masked_lm_is_the_sum_of_negative_log_probabilities",
      ),
      (
        "RTD label flipped",
        "labels = is_original.astype(jnp.float32)",
        "labels = 1.0 - is_original.astype(jnp.float32)",
        "test_rtd_logit_above_zero_says_original",
      ),
      (
        "an anchor is its own negative",
        "allowed = (present[:, None, :] > 0) & ~jnp.eye(size, dtype=bool)",
        "allowed = present[:, None, :] > 0",
        "test_scl_of_two_orthogonal_sequences[1.0]",
      ),
      (
        "SCL temperature multiplies",
        "cosines / temperature",
        "cosines * temperature",
        "test_scl_of_two_orthogonal_sequences[0.5]",
      ),
      (
        "TACO positives are not detached",
        "positives, negatives = jax.lax.stop_gradient((positives, negatives))",
        "positives, negatives = (positives, negatives)",
        "test_taco_gradient_flows_through_the_anchor_only",
      ),
    ],
  ),
  (
    "pretrain/objectives/taco.py",
    "tests/pretrain/objectives/test_taco.py",
    [
      (
        "hidden states for contextual parts",
        "view.hidden.astype(jnp.float32) - view.embedded.astype(jnp.float32)",
        "view.hidden.astype(jnp.float32)",
        "test_the_loss_contrasts_contextual_parts_at_the_anchors[all-chosen0]",
      ),
      (
        "the gradient of token alignment is not scaled",
        "return gradients * cotangent, None",
        "return gradients, None",
        "test_the_gradient_of_a_multiple_is_the_multiple_of_the_gradient",
      ),
    ],
  ),
  (
    "pretrain/objectives/scl.py",
    "tests/pretrain/objectives/test_scl.py",
    [
      (
        "SCL divided by half its anchors",
        "2.0 * jnp.sum(corrupted.row_weights)",
        "jnp.sum(corrupted.row_weights)",
        "test_the_state_of_cls_is_contrasted_with_that_of_the_crop",
      ),
    ],
  ),
  (
    "pretrain/models/layers.py",
    "tests/pretrain/models/test_layers.py",
    [
      (
        "pre-norm for post-norm",
        'name="attention_norm")(x, attended, part)',
        'name="attention_norm")(0 * x, attended, part) + x',
        "test_a_layer_is_post_norm_with_exact_gelu_and_an_unscaled_bias",
      ),
      (
        "eps of the norm is not the config's",
        "self.config.layer_norm_eps, self",
        "1e-6, self",
        "test_norms_add_the_eps_of_the_config_to_the_variance",
      ),
    ],
  ),
  (
    "pretrain/ops/gelu.py",
    "tests/pretrain/models/test_layers.py",
    [
      (
        "approximate gelu",
        "jax.lax.erf(wide * 0.5**0.5)",
        "jnp.tanh((2 / jnp.pi) ** 0.5 * (wide + 0.044715 * wide**3))",
        "test_a_layer_is_post_norm_with_exact_gelu_and_an_unscaled_bias",
      ),
    ],
  ),
  (
    "pretrain/ops/norm/layer_norm.py",
    "tests/pretrain/ops/norm/test_layer_parts.py",
    [
      (
        "the gradient of the norm forgets that the deviation depends on x",
        "- normed * of_inverse",
        "",
        "test_the_norm_is_that_of_flax_in_value_and_gradients[by_formula-float32]",
      ),
    ],
  ),
  (
    "pretrain/models/layers.py",
    "tests/pretrain/models/test_dropout.py",
    [
      (
        "layer number not folded into keys",
        "row_random.fold(row_keys, index)",
        "row_keys",
        "test_every_layer_draws_its_own_dropout_mask",
      ),
    ],
  ),
  (
    "pretrain/models/encoder.py",
    "tests/pretrain/models/test_encoder.py",
    [
      (
        "detach is off by one",
        "np.isin(np.arange(config.num_layers), detach_after)",
        "np.isin(np.arange(1, config.num_layers + 1), detach_after)",
        "test_detached_layers_get_exactly_no_gradient_from_above[detach_after0]",
      ),
      (
        "look-ups train the padding row",
        "fixed=pad_id)",
        "fixed=-1)",
        "test_the_padding_row_gets_no_gradient_from_look_ups_and_others_do",
      ),
    ],
  ),
  (
    "pretrain/models/relative_position.py",
    "tests/pretrain/models/test_relative_position.py",
    [
      (
        "T5 buckets are off by one",
        "far = exact + (log_ratio * np.float32(half - exact)).astype(np.int32)",
        "far = exact + (log_ratio * np.float32(half - 1 - exact)).astype(np.int32)",
        "test_t5_buckets_have_the_values_of_stock_mpnet",
      ),
    ],
  ),
  (
    "pretrain/ops/draws/row_random.py",
    "tests/pretrain/ops/draws/test_row_random.py",
    [
      (
        "the use of a key is not folded in",
        "return _dropout(x, key_words(fold(row_keys, use)), positions, draw)",
        "return _dropout(x, key_words(row_keys), positions, draw)",
        "test_two_uses_of_a_row_drop_different_elements",
      ),
      (
        "dropout does not rescale",
        "x / (1.0 - draw.rate), jnp.zeros_like(x)",
        "x, jnp.zeros_like(x)",
        "test_dropout_drops_at_its_rate_and_preserves_the_mean[0.5]",
      ),
      (
        "every step has the same keys",
        "step_key = jax.random.fold_in(jax.random.key(seed), step)",
        "step_key = jax.random.key(seed)",
        "test_a_row_key_is_a_function_of_seed_step_and_row",
      ),
    ],
  ),
]
