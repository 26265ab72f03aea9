"""Faults of the kernels for NVIDIA GPUs, and of where they are taken. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/ops/norm/added_norm_triton_kernels.py",
    "tests/pretrain/ops/norm/test_added_norm.py",
    [
      (
        "a branch that is not added comes in on GPUs",
        "is_added = (tl.load(facts + 2) != 0)",
        "is_added = (tl.load(facts + 2) == tl.load(facts + 2))",
        "test_on_gpus_values_and_gradients_are_those_of_the_parts",
      ),
      (
        "lanes behind the width count for a mean on GPUs",
        "tl.where(real, total.to(tl.float32), 0.0)",
        "tl.where(real, total.to(tl.float32), 1.0)",
        "test_on_gpus_values_and_gradients_are_those_of_the_parts",
      ),
      (
        "tokens of a row draw the mask of its first",
        "((token % length) * width)[:, None]",
        "((token % 1) * width)[:, None]",
        "test_on_gpus_values_and_gradients_are_those_of_the_parts",
      ),
      (
        "the branch's bias gets the gradient before dropout",
        "d_branch_bias += branch.to(tl.float32)",
        "d_branch_bias += total.to(tl.float32)",
        "test_on_gpus_values_and_gradients_are_those_of_the_parts",
      ),
    ],
  ),
  (
    "pretrain/ops/gelu_triton_kernels.py",
    "tests/pretrain/ops/test_gelu_product.py",
    [
      (
        "a bias before a GELU sums on GPUs what was not rounded",
        "(gradient * (below + x * density)).to(d_y.dtype.element_ty)",
        "gradient * (below + x * density)",
        "test_the_gradient_of_the_bias_sums_what_was_rounded",
      ),
      (
        "the slope of a GELU on GPUs has the density alone",
        "below + x * density",
        "below + density",
        "test_values_and_gradients_are_those_of_the_parts",
      ),
      (
        "all programs of a GELU's gradient have the first lanes",
        "% columns * lanes",
        "% 1 * lanes",
        "test_values_and_gradients_are_those_of_the_parts",
      ),
    ],
  ),
  (
    "pretrain/ops/gelu_product.py",
    "tests/pretrain/ops/test_gelu_product.py",
    [
      (
        "a GELU in float32 is that of 3e-7 on GPUs",
        "x.dtype.itemsize == 2",
        "x.dtype.itemsize > 1",
        "test_the_kernels_are_taken_on_gpus_in_16_bits_where_no_partitioner_cuts",
      ),
      (
        "the backward pass computes a GELU's input again",
        "return keep(constrain(",
        "return (constrain(",
        "test_the_backward_pass_computes_neither_product_nor_the_gelu_again",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention.py",
    "tests/pretrain/ops/test_gelu_product.py",
    [
      (
        "Triton's kernels are taken where the partitioner cuts their arrays",
        'platform() == "gpu" and not automatic_axes() and',
        'platform() == "gpu" and',
        "test_the_kernels_are_taken_on_gpus_in_16_bits_where_no_partitioner_cuts",
      ),
    ],
  ),
  (
    "pretrain/ops/vocab/lookup_triton_kernels.py",
    "tests/pretrain/ops/vocab/test_lookup.py",
    [
      (
        "a run is added once for each of its first rows",
        "(row != _ids(ids, places - 1, number)) & ",
        "",
        "test_rows_are_added_to_those_of_their_ids",
      ),
      (
        "every place in a long run has a program that adds all of it",
        "(row != _ids(ids, mark - block, number)) & ",
        "",
        "test_rows_are_added_to_those_of_their_ids",
      ),
      (
        "the rows of a run are those that lie side by side",
        "tl.load(order + places, mask=is_left, other=0)",
        "tl.where(is_left, places, 0)",
        "test_rows_are_added_to_those_of_their_ids",
      ),
    ],
  ),
  (
    "pretrain/ops/vocab/lookup.py",
    "tests/pretrain/ops/vocab/test_lookup.py",
    [
      (
        "a lookup's gradient is a scatter where Triton computes",
        "if takes_triton():",
        "if not takes_triton:",
        "test_the_kernels_are_taken_where_triton_computes",
      ),
      (
        "padding gets a gradient from lookups on GPUs",
        "jnp.where(ids == fixed, len(of_table), ids)",
        "ids",
        "test_a_lookups_gradient_is_that_of_its_definition_also_for_several_tables",
      ),
      (
        "GPUs scatter the gradient of a small table",
        'if platform() != "gpu":',
        "if platform():",
        "test_on_gpus_a_small_tables_gradient_is_no_scatter",
      ),
    ],
  ),
  (
    "pretrain/ops/attention/attention_at.py",
    "tests/pretrain/models/test_last_layer.py",
    [
      (
        "GPUs sum up a bias's other diagonals",
        "jnp.flip(cotangent, 1)",
        "jnp.flip(cotangent, 2)",
        "test_on_gpus_the_gradient_of_a_bias_by_distance_is_no_scatter",
      ),
    ],
  ),
  (
    "pretrain/losses.py",
    "tests/pretrain/objectives/test_taco.py",
    [
      (
        "the gradient of products with negatives is of float32",
        "low = given.astype(negatives.dtype)",
        "low = given",
        "test_products_with_negatives_have_their_dtype_in_the_gradient_too",
      ),
    ],
  ),
  (
    "pretrain/plan/roofline.py",
    "tests/pretrain/plan/test_program.py",
    [
      (
        "an array that a kernel writes into counts as a whole",
        "min(written[int(result or 0)], read)",
        "written[int(result or 0)]",
        "test_a_kernel_that_writes_into_one_of_its_arrays_changes_no_more_than_it_reads",
      ),
    ],
  ),
]
