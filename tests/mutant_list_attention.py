"""Faults of attention in all bodies, and of scores over the vocabulary. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/ops/attention/attention.py",
    "tests/pretrain/ops/attention/test_attention.py",
    [
      (
        "padding is attended to",
        "allowed = key_mask[:, None, None, :]",
        "allowed = key_mask[:, None, None, :] | True",
        "test_masked_keys_have_exactly_no_influence",
      ),
      (
        "query is scaled twice",
        "query.shape[-1] ** -0.5",
        "query.shape[-1] ** -1.0",
        "test_it_is_softmax_of_scaled_products_plus_an_unscaled_bias",
      ),
      (
        "other segments are attended to",
        "segment_ids[:, None, :, None] == segment_ids[:, None, None, :]",
        "segment_ids[:, None, :, None] >= segment_ids[:, None, None, :]",
        "test_segments_and_windows_hide_keys_as_a_mask_does",
      ),
      (
        "the window is one token wider",
        "np.abs(distances(query.shape[1])) <= window",
        "np.abs(distances(query.shape[1])) <= window + 1",
        "test_segments_and_windows_hide_keys_as_a_mask_does",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_rows.py",
    "tests/pretrain/ops/attention/test_attention_rows.py",
    [
      (
        "the gradient of the bias is that of the last row",
        "d_bias = None if d_bias is None else d_bias + d_scores",
        "d_bias = None if d_bias is None else d_scores",
        "test_padding_dropout_segments_and_window_equal_plain",
      ),
      (
        "scores of queries without keys get a gradient",
        "jnp.where(row.allowed, probabilities * (d_probabilities - mean), 0.0)",
        "probabilities * (d_probabilities - mean)",
        "test_padding_dropout_segments_and_window_equal_plain",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_tile.py",
    "tests/pretrain/ops/attention/test_attention_tpu.py",
    [
      (
        "the backward pass drops what the forward pass kept",
        "dropped = jnp.where(kept, weights, 0.0)",
        "dropped = jnp.where(kept, 0.0, weights)",
        "test_two_tiles_and_two_groups_of_heads_with_padding_and_dropout_equal_plain",
      ),
      (
        "the kernel's scores of queries without keys get a gradient",
        "d_output = (d_output * live).astype(value.dtype)",
        "d_output = d_output.astype(value.dtype)",
        "test_two_tiles_and_two_groups_of_heads_with_padding_and_dropout_equal_plain",
      ),
      (
        "the kernel's gradient of the bias is that of the last row",
        "summed[head, :, at] += d_scores[",
        "summed[head, :, at] = d_scores[",
        "test_two_tiles_and_two_groups_of_heads_with_padding_and_dropout_equal_plain",
      ),
      (
        "the kernel's gradient of the query's own bias is that of the last tile",
        'out["biases"][0, :1] +=',
        'out["biases"][0, :1] =',
        "test_two_tiles_and_two_groups_of_heads_with_padding_and_dropout_equal_plain",
      ),
      (
        "rows of a grid step draw the dropout of the first of them",
        "place = group, step * sizes.at_once + at",
        "place = group, step * sizes.at_once",
        "test_two_tiles_and_two_groups_of_heads_with_padding_and_dropout_equal_plain",
      ),
      (
        "the kernels' window is one token wider",
        "near = jnp.abs(of_key - of_query) <= sizes.window",
        "near = jnp.abs(of_key - of_query) <= sizes.window + 1",
        "test_segments_and_window_without_bias_equal_plain_in_bfloat16",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_heads.py",
    "tests/pretrain/ops/attention/test_attention_tpu.py",
    [
      (
        "a head's columns are those of the first head",
        "columns[:, at * TILE : (at + 1) * TILE]) for at in heads",
        "columns[:, :TILE]) for at in heads",
        "test_two_tiles_and_two_groups_of_heads_with_padding_and_dropout_equal_plain",
      ),
    ],
  ),
  (
    "pretrain/ops/draws/row_random.py",
    "tests/pretrain/ops/draws/test_row_random.py",
    [
      (
        "both heads of a pair are dropped together",
        "own = bits ^ ((bits << 16) & -half)",
        "own = bits",
        "test_probabilities_are_dropped_one_by_one[0.1]",
      ),
    ],
  ),
  (
    "pretrain/plan/schedules.py",
    "tests/pretrain/plan/test_schedules.py",
    [
      (
        "cycles in which a core waits do not count in the loop",
        'is_inside = is_inside if text.startswith("}") else bool(marks)',
        "is_inside = bool(marks)",
        "test_bundles_count_as_often_as_they_run_and_waiting_counts",
      ),
      (
        "a kernel that is jumped over before its first place counts at one place",
        "return sum(size for size in sizes if 2 * size < len(inside))",
        "return sum(sizes)",
        "test_a_kernel_that_is_jumped_over_before_its_first_place_runs_in_every_turn",
      ),
      (
        "what runs at one place of an axis counts in every turn",
        "often * _at_one_place(inside)",
        "0 * _at_one_place(inside)",
        "test_bundles_count_as_often_as_they_run_and_waiting_counts",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_kernels.py",
    "tests/pretrain/ops/attention/test_attention_tpu.py",
    [
      (
        "every device draws dropout for the first heads",
        "function(jax.lax.axis_index(HEAD_AXIS), *arrays)",
        "function(jnp.int32(0), *arrays)",
        "test_on_a_mesh_every_device_computes_its_rows_and_heads",
      ),
      (
        "the gradient of the bias is that of one device's rows",
        "jax.lax.psum((d_bias, d_added), rows) if rows else (d_bias, d_added)",
        "(d_bias, d_added)",
        "test_on_a_mesh_every_device_computes_its_rows_and_heads",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_triton_tiles.py",
    "tests/pretrain/ops/attention/test_attention_triton.py",
    [
      (
        "the kernels on GPUs draw dropout of other heads",
        "first = tl.load(first)",
        "first = tl.load(first) * 0",
        "test_on_a_mesh_every_device_computes_its_rows_and_heads",
      ),
      (
        "the window on GPUs is one token wider",
        "tl.abs(key_at - query_at) <= window",
        "tl.abs(key_at - query_at) <= window + 1",
        "test_segments_and_window_with_bias_and_odd_widths_equal_plain",
      ),
      (
        "keys lie where values do",
        "query + width + at, query + 2",
        "query + 2 * width + at, query + 2",
        "test_queries_keys_and_values_in_one_array_have_the_same_results_and_their_gradients_in_one",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_triton_kernels.py",
    "tests/pretrain/ops/attention/test_attention_triton.py",
    [
      (
        "the kernel on GPUs does not shrink what it attended before a higher score",
        "attended * shrunk[:, None]",
        "attended * 1.0",
        "test_three_tiles_with_padding_and_dropout_equal_plain",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_triton_backward_kernels.py",
    "tests/pretrain/ops/attention/test_attention_triton.py",
    [
      (
        "keys that no query may read get a gradient on GPUs",
        "tl.where(allowed, scores, MASKED)",
        "scores",
        "test_three_tiles_with_padding_and_dropout_equal_plain",
      ),
      (
        "both halves of a tile's diagonals are one",
        "tl.sum(tl.where(behind < 0, columns, 0.0), 0)",
        "tl.sum(columns, 0)",
        "test_three_tiles_with_padding_and_dropout_equal_plain",
      ),
      (
        "a row's gradient of the bias counts alone",
        "summed += tl.load(of_row",
        "summed = tl.load(of_row",
        "test_three_tiles_with_padding_and_dropout_equal_plain",
      ),
      (
        "the sums of a block's values are those of its keys",
        "_put_sum(sums + width, d_values, head_dim, lanes)",
        "_put_sum(sums + width, d_block, head_dim, lanes)",
        "test_three_tiles_with_padding_and_dropout_equal_plain",
      ),
      (
        "keys without a part in a row have what lay in memory as gradients of their scores",
        "for start in range(end, padded, queries):",
        "for start in range(end, end, queries):",
        "test_three_tiles_with_padding_and_dropout_equal_plain",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_triton.py",
    "tests/pretrain/ops/attention/test_attention_triton.py",
    [
      (
        "a row without a token averages over none",
        "end = jnp.where(end == 0, length, end)",
        "end = jnp.where(end == 0, 1, end)",
        "test_three_tiles_with_padding_and_dropout_equal_plain",
      ),
      (
        "tiles a block farther apart are added to those before",
        "first = (tiles + 1) // 2 * BLOCK - length",
        "first = (tiles + 1) // 2 * BLOCK - BLOCK",
        "test_sums_along_diagonals_are_the_gradient_of_the_bias",
      ),
      (
        "keys behind a masked one are read by all",
        "jnp.sum(jnp.cumprod(fixed.key_mask, axis=1, dtype=jnp.int32), axis=1)",
        "jnp.sum(fixed.key_mask, axis=1, dtype=jnp.int32)",
        "test_keys_are_masked_where_they_are_not_the_last_of_a_row",
      ),
      (
        "the gradient of queries replaces that of keys",
        "((4, 1), (3, 0)) if is_packed else",
        "((4, 1),) if is_packed else",
        "test_queries_keys_and_values_in_one_array_have_the_same_results_and_their_gradients_in_one",
      ),
    ],
  ),
  (
    "pretrain/ops/vocab/vocab_cross_entropy.py",
    "tests/pretrain/ops/vocab/test_vocab_cross_entropy.py",
    [
      (
        "the last of equal scores is the top one",
        "return jnp.min(ids, axis=-1).astype(jnp.int32)",
        "return jnp.max(jnp.where(is_top, ids, 0.0), axis=-1).astype(jnp.int32)",
        "test_the_top_token_is_the_first_of_equals_and_is_in_the_vocabulary_even_beside_a_nan",
      ),
    ],
  ),
  (
    "pretrain/ops/vocab/vocab_loss.py",
    "tests/pretrain/ops/vocab/test_vocab_loss.py",
    [
      (
        "the bias has no column on TPUs",
        "(0, ones)), constant_values=1)",
        "(0, ones)), constant_values=0)",
        "test_on_tpus_the_bias_is_a_column_of_the_product_and_its_gradient_is_the_same[5]",
      ),
      (
        "rows that do not count come first",
        "jnp.argsort(~used.reshape(-1), stable=True)",
        "jnp.argsort(used.reshape(-1), stable=True)",
        "test_chunks_without_a_used_position_are_not_computed",
      ),
      (
        "the gradient of a loss that is weighted is that of the loss alone",
        "lambda gradient: gradient * cotangents[0]",
        "lambda gradient: gradient",
        "test_loss_gradients_and_scores_are_those_of_the_plain_softmax_for_any_chunk[5-masked]",
      ),
    ],
  ),
]
