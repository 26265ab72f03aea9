"""Faults of attention in all its bodies. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/ops/attention.py",
    "tests/pretrain/ops/test_attention.py",
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
    "pretrain/ops/attention_rows.py",
    "tests/pretrain/ops/test_attention_rows.py",
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
    "pretrain/ops/attention_tile.py",
    "tests/pretrain/ops/test_attention_tpu.py",
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
        "summed[head, :, at] += d_scores",
        "summed[head, :, at] = d_scores",
        "test_two_tiles_and_two_groups_of_heads_with_padding_and_dropout_equal_plain",
      ),
      (
        "the kernel's gradient of the query's own bias is that of the last tile",
        'out["biases"][0, :1] +=',
        'out["biases"][0, :1] =',
        "test_two_tiles_and_two_groups_of_heads_with_padding_and_dropout_equal_plain",
      ),
      (
        "the kernels' window is one token wider",
        "near = jnp.abs(at - of) <= sizes.window",
        "near = jnp.abs(at - of) <= sizes.window + 1",
        "test_segments_and_window_without_bias_equal_plain_in_bfloat16",
      ),
    ],
  ),
  (
    "pretrain/ops/attention_tpu.py",
    "tests/pretrain/ops/test_attention_tpu.py",
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
]
