"""What devices exchange in a step, all of it: kind, axes and bytes as formulas of the sizes of parameters.

`pretrain.mesh.device_program` writes every exchange, so the traced program has them all; the compiled ones of
masked-LM runs show that the partitioner adds a few numbers at most, and that they take the same steps.
"""

import functools
import math
from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lab.speed.estimate import collectives, parse
from pretrain.corruption.masking import TokenIds
from pretrain.mesh import device_program, sharding, trees
from pretrain.run import Run, make_run
from pretrain.settings.run import MeshSettings
from tests.pretrain import small_run

ROWS, LENGTH, WIDTH, LAYERS = 16, 32, 16, 4
_KINDS = {"psum": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}
_ADDED = 5  # metrics of the step itself: loss, grad_norm, learning_rate, skipped_updates, skipped_in_a_row


class Step(NamedTuple):
  """A run, and its step as it was traced."""

  run: Run
  traced: jax.stages.Traced


@functools.cache
def _step(recipe: str, mesh: tuple[int, int, int], **fields) -> Step:
  config = small_run.get_config(recipe)
  axes = dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), mesh))
  given = {name.replace("__", "."): value for name, value in fields.items()}
  fixed = {
    "train.batch_size": ROWS,
    "model.num_layers": LAYERS,
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
  }
  config.update_from_flattened_dict(fixed | axes | given)
  with small_run.devices(math.prod(mesh)):
    run = make_run(config, TokenIds(0, 1, 2, 3, 4, small_run.VOCAB_SIZE))
  ids = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
  with jax.set_mesh(run.mesh):
    return Step(run, run.compile_train_step().trace(run.abstract_state, ids))


def _exchanged(jaxpr, times: int = 1) -> Counter:
  """{(kind, axes, dtype): bytes} of a step on one device, the larger of what goes in and comes out."""
  found: Counter = Counter()
  for equation in jaxpr.eqns:
    axes = equation.params.get("axes", equation.params.get("axis_name"))
    is_exchange = isinstance(axes, tuple) and {type(axis) for axis in axes} == {str}
    if is_exchange and equation.primitive.name != "axis_index":
      kind = _KINDS[equation.primitive.name]
      for one, other in zip(equation.invars, equation.outvars, strict=True):
        size = max(one.aval.size, other.aval.size) * one.aval.dtype.itemsize
        found[kind, "+".join(axes), str(one.aval.dtype)] += times * size
    turns = equation.params["length"] if equation.primitive.name == "scan" else 1
    for value in equation.params.values():
      for inner in value if isinstance(value, tuple | list) else [value]:
        inner = getattr(inner, "jaxpr", inner)
        if hasattr(inner, "eqns"):
          found += _exchanged(inner, times * turns)
  return found


def _bytes(step: Step, *, stacked: bool | None = None, cut: bool | None = None, under: str = "") -> int:
  """Float32 bytes of the parameters that are (not) in a stack of layers, (not) cut over fsdp; None: both."""
  total = 0
  for path, leaf in trees.by_path(step.run.abstract_state.params).items():
    is_stacked, is_cut = "/layers/" in path, "fsdp" in leaf.sharding.spec
    if path.startswith(under) and stacked in (None, is_stacked) and cut in (None, is_cut):
      total += 4 * leaf.size
  return total


def _metrics(step: Step) -> int:
  """Bytes of the loss, and of (sum, weight) of every metric of a recipe."""
  return 4 * (1 + 2 * (len(step.traced.out_info[1]) - _ADDED))


def _assert_exchanged(step: Step, expected: dict[tuple[str, str, str], int]) -> None:
  assert dict(_exchanged(step.traced.jaxpr.jaxpr)) == expected


def test_data_parallel_devices_sum_every_gradient_once_however_many_microbatches():
  # Contrast of whole groups exchanges nothing more.
  for fields in ({}, {"train__microbatches": 2}, {"objectives__taco__weight": 1.0}):
    step = _step("mlm", (8, 1, 1), **fields)
    _assert_exchanged(step, {("all-reduce", "data", "float32"): _bytes(step) + _metrics(step)})


def test_groups_that_end_in_the_middle_of_a_device_have_all_their_rows():
  with small_run.devices(3):
    mesh = sharding.make_mesh(MeshSettings(3, 1, 1))
  values = np.random.default_rng(0).integers(1, 99, 12).astype(np.float32)

  def squares(params, rows, totals):
    groups = device_program.whole_groups(rows, 3)  # of four rows of a device
    assert len(groups.rows) % groups.size == 0
    sums = groups.rows.reshape(-1, groups.size).sum(axis=1)
    return device_program.total(jnp.sum(rows * sums[(groups.first + jnp.arange(len(rows))) // groups.size]))

  with jax.set_mesh(mesh):
    found = jax.jit(device_program.on_own_rows(squares, {}, row_axis=0, returns="values"))({}, values, {})
  assert float(found) == (values.reshape(4, 3).sum(axis=1) ** 2).sum()


def test_groups_on_two_devices_exchange_rows_with_each_other_alone():
  step = _step("mlm", (8, 1, 1), objectives__taco__weight=1.0, objectives__taco__group_size=4)
  vectors = 4 * 4 * LENGTH * WIDTH  # bytes of a group's hidden states
  expected = {
    ("all-reduce", "data", "float32"): _bytes(step) + _metrics(step),
    ("all-gather", "data", "float32"): 2 * vectors,  # contextual parts, and hidden states for a metric
    ("all-gather", "data", "int32"): 4 * 4,  # lengths
  }
  _assert_exchanged(step, expected)


def test_weights_cut_over_fsdp_are_gathered_where_they_are_read_and_their_gradients_scattered():
  for fields, reads in (({}, 2), ({"model__remat": "none"}, 1), ({"model__dtype": "bfloat16"}, 2)):
    step = _step("mlm", (1, 8, 1), **fields)
    rest, of_layers = (_bytes(step, stacked=stacked, cut=True) for stacked in (False, True))
    expected = {
      ("all-gather", "fsdp", "float32"): rest + reads * of_layers,
      ("reduce-scatter", "fsdp", "float32"): _bytes(step, cut=True),
      ("all-reduce", "fsdp", "float32"): _bytes(step, cut=False) + _metrics(step),
    }
    if "model__dtype" in fields:  # kernels of layers are gathered in half the bytes and reduced in float32
      expected[("all-gather", "fsdp", "float32")] = rest
      expected[("all-gather", "fsdp", "bfloat16")] = reads * of_layers // 2
    _assert_exchanged(step, expected)


def test_over_data_and_fsdp_only_what_lies_in_layers_is_exchanged_once_a_microbatch():
  step = _step("coco_lm", (2, 4, 1), train__microbatches=2, model__dropout=0.1)
  encoder, generator = (_bytes(step, stacked=True, cut=True, under=f"{part}/") for part in _TRUNKS)
  rest, cut = _bytes(step, stacked=False, cut=True), _bytes(step, cut=True)
  expected = {
    # Two views, each read in both passes; the generator once more, to sample without dropout.
    ("all-gather", "fsdp", "float32"): rest + 2 * (4 * encoder + 3 * generator),
    ("reduce-scatter", "fsdp", "float32"): rest + 2 * (2 * encoder + generator),
    ("all-reduce", "data", "float32"): cut // 4,
    ("all-reduce", "data+fsdp", "float32"): _bytes(step, cut=False) + _metrics(step),
    # A device has one row of a microbatch: groups of two lie on two devices, in both views, with weights.
    ("all-gather", "data+fsdp", "float32"): 2 * 4 * (2 * 2 * WIDTH + 2),
    ("reduce-scatter", "data+fsdp", "float32"): 2 * 4 * (2 * 2 * WIDTH),
  }
  _assert_exchanged(step, expected)


def test_a_shared_update_gathers_every_weight_once_a_step_and_kernels_of_layers_in_bfloat16():
  fields = {"optimizer__shard_update": True, "train__microbatches": 2, "model__dtype": "bfloat16"}
  step = _step("mlm", (8, 1, 1), **fields)
  shared, stacked = 0, 0
  for path, leaf in trees.by_path(step.run.abstract_state.params).items():
    is_shared = "data" in leaf.sharding.spec
    assert is_shared == path.endswith(("/kernel", "/embedding")), path
    shared += 4 * leaf.size * is_shared
    stacked += 4 * leaf.size * (is_shared and "/layers/" in path)
  expected = {
    ("all-gather", "data", "float32"): shared - stacked,
    ("all-gather", "data", "bfloat16"): stacked // 2,
    ("reduce-scatter", "data", "float32"): shared,
    ("all-reduce", "data", "float32"): _bytes(step) - shared + _metrics(step),
  }
  _assert_exchanged(step, expected)


_TRUNKS = ("encoder", "generator")
_MESHES = {
  "data": ((8, 1, 1), {}),
  "fsdp": ((1, 8, 1), {}),
  "shared update": ((4, 2, 1), {"optimizer__shard_update": True}),
}


@functools.cache
def _compiled(name: str):
  mesh, fields = _MESHES[name]
  step = _step("mlm", mesh, **fields)
  with jax.set_mesh(step.run.mesh):
    return step, step.traced.lower().compile()


def _stepped(name: str) -> dict[str, np.ndarray]:
  step, program = _compiled(name)
  random = np.random.default_rng(0)
  values = jax.tree.map(
    lambda leaf: (
      (0.1 * random.standard_normal(leaf.shape)).astype(leaf.dtype) if leaf.ndim else np.zeros((), leaf.dtype)
    ),
    step.run.abstract_state._replace(opt_state=()),
  )
  zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), step.run.abstract_state.opt_state)
  state = jax.device_put(values._replace(opt_state=zeros), step.run.state_shardings)
  ids = random.integers(5, small_run.VOCAB_SIZE, (ROWS, LENGTH)).astype(np.int32)
  for _ in range(3):
    state, _ = program(state, sharding.to_global(step.run.mesh, ids))
  return {path: np.asarray(leaf) for path, leaf in trees.by_path((state.params, state.opt_state)).items()}


def test_however_state_is_cut_the_same_steps_are_taken_and_the_partitioner_adds_a_few_numbers():
  expected = _stepped("data")
  _assert_few_are_added("data")
  for name in ("fsdp", "shared update"):
    found = _stepped(name)
    for path, value in expected.items():
      np.testing.assert_allclose(found[path], value, rtol=1e-4, atol=1e-6, err_msg=path)
    _assert_few_are_added(name)


def _assert_few_are_added(name: str) -> None:
  step, program = _compiled(name)
  written = _exchanged(step.traced.jaxpr.jaxpr)
  exchanged = collectives(parse(program.as_text()))
  found = Counter({kind: row["bytes"] for kind, row in exchanged.items()})
  expected: Counter = Counter()
  for (kind, *_), size in written.items():
    expected[kind] += size
  added = {kind: found[kind] - expected[kind] for kind in found | expected}
  # The last layer stands outside the loop: the CPU compiler gathers its weights once for both passes.
  merged = _bytes(step, stacked=True, cut=True) // LAYERS if name != "data" else 0
  assert 0 <= added.pop("all-gather", 0) + merged <= merged + 100, added
  # A number for each leaf that is cut: its part of the gradient norm, its largest parameter and moment.
  assert all(0 <= size <= 200 for size in added.values()), added


def test_fsdp_takes_less_memory_than_data_and_holds_an_eighth_of_what_it_cuts():
  step, program = _compiled("fsdp")
  sizes, of_data = program.memory_analysis(), _compiled("data")[1].memory_analysis()
  assert sizes.temp_size_in_bytes <= of_data.temp_size_in_bytes
  state = 3 * (_bytes(step, cut=False) + _bytes(step, cut=True) / 8)
  np.testing.assert_allclose(sizes.argument_size_in_bytes, state + 4 * ROWS * LENGTH / 8, rtol=0.01)
