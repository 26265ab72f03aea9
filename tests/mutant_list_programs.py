"""Faults of what XLA's compilers make of a step, and are asked for. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/ops/dense.py",
    "tests/pretrain/ops/norm/test_layer_parts.py",
    [
      (
        "CPUs contract two axes of tokens",
        'platform() == "cpu"',
        'platform() == "tpu"',
        "test_the_copy_of_an_operand_on_a_cpu_computes_no_gelu",
      ),
      (
        "GPUs sum what was not rounded",
        'platform() == "gpu"',
        'platform() == "cpu"',
        "test_on_a_gpu_a_gradient_is_rounded_before_it_is_summed",
      ),
    ],
  ),
  (
    "pretrain/ops/norm/added_norm_tpu.py",
    "tests/pretrain/ops/norm/test_added_norm.py",
    [
      (
        "the bias of a branch that was not added gets a gradient",
        "dropped = d_norm * factors[row, 0]",
        "dropped = d_norm * factors[0, 0]",
        "test_the_kernels_gradients_are_those_of_the_parts",
      ),
      (
        "rows that share a step share their mask",
        "words[row, word]",
        "words[rows * sizes.at_once, word]",
        "test_the_kernels_gradients_are_those_of_the_parts",
      ),
      (
        "each block of a row draws from its beginning",
        "tile * sizes.tokens + start",
        "start",
        "test_the_kernels_gradients_are_those_of_the_parts",
      ),
      (
        "what lies behind a row's end is summed up",
        "if sizes.length % sizes.tokens == 0:",
        "if sizes.length:",
        "test_the_kernels_gradients_are_those_of_the_parts",
      ),
      (
        "without dropout the branch of every row gets a gradient",
        "jnp.where(kept_rows[:, None, None], d_x, jnp.zeros_like(d_x))",
        "d_x",
        "test_the_kernels_gradients_are_those_of_the_parts",
      ),
      (
        "sums begin again with every block of a row",
        "@pl.when(tile == 0)",
        "@pl.when(tile >= 0)",
        "test_the_kernels_gradients_are_those_of_the_parts",
      ),
    ],
  ),
  (
    "pretrain/ops/norm/added_norm.py",
    "tests/pretrain/ops/norm/test_added_norm.py",
    [
      (
        "the kernel is taken for a part of the rows",
        "if kernels and part is None and",
        "if kernels and",
        "test_the_kernels_are_taken_for_whole_rows_that_no_partitioner_cuts",
      ),
      (
        "the kernel is taken where the partitioner cuts its arrays",
        "and not automatic_axes()",
        "",
        "test_the_kernels_are_taken_for_whole_rows_that_no_partitioner_cuts",
      ),
    ],
  ),
  (
    "pretrain/ops/norm/layer_norm.py",
    "tests/pretrain/ops/norm/test_added_norm.py",
    [
      (
        "GPUs lay out a norm's result as they like",
        "return row_major(_plain(",
        "return (_plain(",
        "test_a_gpu_without_triton_computes_the_parts_and_lays_no_rows_together",
      ),
    ],
  ),
  (
    "pretrain/models/layers.py",
    "tests/pretrain/models/test_layers.py",
    [
      (
        "eps of a layer's norm is not the config's",
        "self.use, config.layer_norm_eps",
        "self.use, 1e-6",
        "test_norms_add_the_eps_of_the_config_to_the_variance",
      ),
    ],
  ),
  (
    "pretrain/plan/dry_run.py",
    "tests/pretrain/plan/test_dry_run.py",
    [
      (
        "gradients are counted as cut like the shared state",
        "sharding.shardings(mesh, params)",
        "sharding.shardings(mesh, params, over_data=True)",
        "test_state_and_gradients_are_counted_exactly_and_per_device",
      ),
    ],
  ),
  (
    "pretrain/mesh/device_program.py",
    "tests/pretrain/mesh/test_collectives.py",
    [
      (
        "a shared update gathers kernels of layers in float32",
        '_gather(casts[path], axis, "data")',
        '_gather(casts[path].astype(jnp.float32), axis, "data").astype(casts[path].dtype)',
        "test_a_shared_update_gathers_every_weight_once_a_step_and_kernels_of_layers_in_bfloat16",
      ),
    ],
  ),
  (
    "pretrain/mesh/compiler_options.py",
    "tests/pretrain/mesh/test_compiler_options.py",
    [
      (
        "the environment's options are overruled",
        "if name not in given",
        "if name",
        "test_what_the_environment_sets_is_left_to_it",
      ),
      (
        "every TPU gets larger tiles",
        "_TABLE.get(kind, {})",
        "_TABLE.get(kind, _LARGER_TILES)",
        "test_only_chips_with_so_much_memory_get_larger_tiles",
      ),
      (
        "an H100 is known by its whole name alone",
        'r"\\bG?H[12]00\\b"',
        'r"\\bG?H[12]00$"',
        "test_products_on_hopper_are_the_librarys",
      ),
    ],
  ),
  (
    "pretrain/run.py",
    "tests/pretrain/mesh/test_compiler_options.py",
    [
      (
        "a step is compiled without the options of its devices",
        "=compiler_options(self.mesh.devices.flat[0].device_kind)",
        "=None",
        "test_a_training_step_is_compiled_with_the_options_of_its_devices",
      ),
    ],
  ),
  (
    "finetune/search/program.py",
    "tests/finetune/search/test_program.py",
    [
      (
        "a fine-tuning step is compiled without the options of its devices",
        "=compiler_options(self.devices[0].device_kind)",
        "=None",
        "test_a_step_is_compiled_with_the_options_of_its_devices",
      ),
    ],
  ),
  (
    "pretrain/plan/forecast.py",
    "tests/pretrain/plan/test_forecast.py",
    [
      (
        "a TPU's temporaries are libtpu's size of them",
        'if platform == "tpu":',
        "if False:",
        "test_temporaries_of_a_tpu_are_what_its_peak_has_beside_the_arguments[tpu-620]",
      ),
    ],
  ),
  (
    "pretrain/ops/vocab/mixture_sampling.py",
    "tests/pretrain/ops/vocab/test_mixture_sampling.py",
    [
      (
        "a TPU keeps the draw's scores for the backward pass",
        'if platform() == "tpu":',
        "if False:",
        "test_on_tpus_the_scores_of_the_backward_pass_wait_for_its_cotangent",
      ),
    ],
  ),
  (
    "pretrain/models/layers.py",
    "tests/pretrain/models/test_last_layer.py",
    [
      (
        "GPUs scatter two gradients to the positions that are read",
        'read is not None and platform() == "gpu"',
        'read is not None and platform() == "tpu"',
        "test_gpus_scatter_a_gradient_once_to_the_positions_that_are_read",
      ),
      (
        "an eighth of the queries is attended for by a kernel for all",
        "8 * read.shape[1] > x.shape[1]",
        "8 * read.shape[1] >= x.shape[1]",
        "test_on_tpus_a_kernel_attends_for_all_queries_if_more_than_an_eighth_of_them_is_read[2-0]",
      ),
      (
        "of what was attended for all queries the first are read",
        "take_positions(attended, read) if",
        "attended[:, : read.shape[1]] if",
        "test_states_and_gradients_equal_those_of_the_whole_layer_with_its_dropout[kernels]",
      ),
    ],
  ),
  (
    "finetune/search/program.py",
    "tests/finetune/search/test_program.py",
    [
      (
        "runs are compiled with a look through their parameters",
        "self._settings, learning_rate=LARGEST_RATE",
        "self._settings, learning_rate=1e6",
        "test_a_step_does_not_look_through_the_parameters_for_what_is_known_of_the_rates",
      ),
    ],
  ),
]
