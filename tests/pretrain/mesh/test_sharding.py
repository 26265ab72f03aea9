"""Run with pytest (on 8 fake CPU devices, see tests/conftest.py)."""

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from data.errors import ConfigError
from pretrain.gradients import split
from pretrain.mesh import sharding, trees
from pretrain.mesh.sharding import MeshSettings

ROOT = Path(__file__).parents[3]
ATTENTION = {
  **{f"attention/{name}/kernel": (3, 16, 4, 4) for name in ("query", "key", "value")},
  **{f"attention/{name}/bias": (3, 4, 4) for name in ("query", "key", "value")},
  "attention/output/kernel": (3, 4, 4, 16),
  "attention/output/bias": (3, 16),
}
LAYERS = {
  **ATTENTION,
  **{f"{norm}/{leaf}": (3, 16) for norm in ("attention_norm", "mlp_norm") for leaf in ("scale", "bias")},
  "up/kernel": (3, 16, 32),
  "up/bias": (3, 32),
  "down/kernel": (3, 32, 16),
  "down/bias": (3, 16),
}
TRUNK = {"relative_position/embedding": (8, 4), **{f"layers/{name}": shape for name, shape in LAYERS.items()}}
TRANSFORM = {"dense/kernel": (16, 16), "dense/bias": (16,), "norm/scale": (16,), "norm/bias": (16,)}
MLM_HEAD = {**TRANSFORM, "bias": (64,)}


def under(prefix: str, shapes: dict) -> dict:
  return {f"{prefix}/{name}": shape for name, shape in shapes.items()}


SHAPES = {
  "generator/inner_norms/scale": (2, 16),
  "encoder/trunk/layers/gate/kernel": (3, 16, 32),
  "encoder/trunk/first_norm/scale": (16,),
  **under("encoder/trunk", TRUNK),
  "encoder/embeddings/token/embedding": (64, 16),
  "encoder/embeddings/position/embedding": (24, 16),
  "encoder/embeddings/segment/embedding": (2, 16),
  "encoder/embeddings/norm/scale": (16,),
  "encoder/embeddings/norm/bias": (16,),
  **under("generator/trunk", TRUNK),
  **under("generator/trunk_1", TRUNK),
  "generator/embeddings/position/embedding": (24, 16),
  "generator/projection/kernel": (16, 16),
  "generator/projection/bias": (16,),
  **under("generator/mlm_head", MLM_HEAD),
  **under("generator/mlm_head_1", MLM_HEAD),
  "generator/mixture/kernel": (16, 1),
  "heads/rtd/kernel": (16, 1),
  "heads/rtd/bias": (1,),
  "heads/rtd/dense/kernel": (16, 16),
  "heads/rtd/dense/bias": (16,),
  "heads/clm/bias": (64,),
  **under("heads/scl", TRANSFORM),
  **under("heads/mlm", MLM_HEAD),
}


def nested(shapes: dict) -> dict:
  tree: dict = {}
  for path, shape in shapes.items():
    *modules, leaf = path.split("/")
    node = tree
    for module in modules:
      node = node.setdefault(module, {})
    node[leaf] = jax.ShapeDtypeStruct(shape, jnp.float32)
  return tree


def mesh_of(data: int, fsdp: int, tensor: int):
  return sharding.make_mesh(MeshSettings(data, fsdp, tensor), devices=jax.devices()[: data * fsdp * tensor])


def flat_specs(mesh, tree) -> dict:
  leaves = trees.by_path(sharding.shardings(mesh, tree))
  return {path: leaf.spec for path, leaf in leaves.items()}


def test_every_parameter_of_two_or_more_axes_is_named_by_a_rule():
  unnamed = [path for path, shape in SHAPES.items() if sharding.logical_axes(path, len(shape)) is None]
  assert unnamed == []


def test_every_rule_names_some_parameter():
  missing = [
    pattern
    for pattern, _ in sharding.RULES
    if not any(sharding.re.search(f"(^|/){pattern}$", path) for path in SHAPES)
  ]
  assert missing == []


@pytest.mark.parametrize(
  ("path", "ndim", "spec"),
  [
    ("encoder/embeddings/token/embedding", 2, P("tensor", "fsdp")),
    ("encoder/embeddings/position/embedding", 2, P(None, "fsdp")),
    ("encoder/embeddings/segment/embedding", 2, P(None, "fsdp")),
    ("encoder/trunk/layers/attention/query/kernel", 4, P(None, "fsdp", "tensor", None)),
    ("encoder/trunk/layers/attention/value/bias", 3, P(None, "tensor", None)),
    ("encoder/trunk/layers/attention/output/kernel", 4, P(None, "tensor", None, "fsdp")),
    ("generator/trunk_0/layers/up/kernel", 3, P(None, "fsdp", "tensor")),
    ("generator/trunk_0/layers/up/bias", 2, P(None, "tensor")),
    ("generator/trunk/layers/down/kernel", 3, P(None, "tensor", "fsdp")),
    ("encoder/trunk/layers/mlp_norm/scale", 2, P(None, None)),
    ("encoder/trunk/relative_position/embedding", 2, P(None, "tensor")),
    ("heads/clm/bias", 1, P("tensor")),
    ("heads/rtd/bias", 1, P(None)),
    ("inner_states/trained/inner_state/0/mu/heads/rtd/kernel", 2, P("fsdp", None)),
    ("0/count", 0, P()),
  ],
)
def test_paths_lie_where_the_table_says(path, ndim, spec):
  assert sharding.partition_spec(path, ndim) == spec


def test_moments_lie_as_their_parameters():
  mesh, params = mesh_of(2, 2, 2), nested(SHAPES)
  state = jax.eval_shape(optax.adamw(1e-3).init, params)
  specs, own = flat_specs(mesh, state), flat_specs(mesh, params)
  for path, spec in own.items():
    assert specs[f"0/mu/{path}"] == spec
    assert specs[f"0/nu/{path}"] == spec
  assert specs["0/count"] == P()


@pytest.mark.parametrize("path", ["heads/new/kernel", "encoder/trunk/up/bias", "xnorm/scale"])
def test_parameter_without_a_rule_is_an_error_that_names_it(path):
  tree = nested({**SHAPES, path: (4, 4), "z/new/table": (2, 2)})
  message = rf"no rule of sharding.RULES matches {path} \(4, 4\), z/new/table \(2, 2\); add one"
  with pytest.raises(ConfigError, match=message) as error:
    sharding.shardings(mesh_of(8, 1, 1), tree)
  assert "\n" not in str(error.value)
  with pytest.raises(ConfigError, match=path):
    sharding.partition_spec(path, 2)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 1, 1), (2, 2, 2), (1, 4, 2)])
def test_parameters_are_cut_and_put_together_again(sizes):
  tree = nested(SHAPES)
  mesh = mesh_of(*sizes)
  values = jax.tree.map(
    lambda leaf: np.arange(np.prod(leaf.shape), dtype=np.float32).reshape(leaf.shape), tree
  )
  placed = jax.device_put(values, sharding.shardings(mesh, tree))
  jax.tree.map(np.testing.assert_array_equal, placed, values)
  table = placed["encoder"]["embeddings"]["token"]["embedding"]
  assert table.addressable_shards[0].data.shape == (64 // sizes[2], 16 // sizes[1])


def test_vocabulary_that_does_not_divide_stays_whole():
  tree = nested({"encoder/embeddings/token/embedding": (30_522, 16), "heads/mlm/bias": (30_522,)})
  four, two = flat_specs(mesh_of(1, 2, 4), tree), flat_specs(mesh_of(1, 4, 2), tree)
  assert four == {"encoder/embeddings/token/embedding": P(None, "fsdp"), "heads/mlm/bias": P(None)}
  assert two["heads/mlm/bias"] == P("tensor")


def test_mesh_fills_the_axis_that_is_left_open():
  assert dict(sharding.make_mesh(MeshSettings(-1, 2, 2)).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
  assert dict(sharding.make_mesh(MeshSettings()).shape) == {"data": 8, "fsdp": 1, "tensor": 1}


def test_batches_are_cut_along_data_and_fsdp():
  mesh = mesh_of(2, 2, 2)
  local = {"ids": np.arange(24, dtype=np.int32).reshape(8, 3)}
  batch = sharding.to_global(mesh, local)["ids"]
  assert batch.sharding == sharding.batch_sharding(mesh)
  assert {shard.data.shape for shard in batch.addressable_shards} == {(2, 3)}
  np.testing.assert_array_equal(batch, local["ids"])
  assert sharding.local_rows(mesh, 8) == list(range(8))


def test_constrain_without_a_mesh_returns_its_argument():
  x = jnp.ones((4, 3, 8))
  assert sharding.constrain(x, "batch", "length", "embed") is x


def test_constrain_under_a_mesh_cuts_the_batch_also_of_keys_and_uneven_rows():
  mesh = mesh_of(2, 2, 2)
  with jax.set_mesh(mesh):
    step = jax.jit(lambda x: sharding.constrain(x, "batch", None, "mlp") * 2)
    assert step(jnp.ones((8, 3, 16))).sharding.spec == P(("data", "fsdp"), None, "tensor")
    keys = jax.random.split(jax.random.key(0), 8).reshape(2, 4)
    cut = jax.jit(lambda x: sharding.constrain(x, None, "batch"))(keys)
    assert cut.sharding.spec[:2] == (None, ("data", "fsdp"))
    np.testing.assert_array_equal(step(jnp.ones((5, 3, 16))), 2 * np.ones((5, 3, 16)))


def test_every_microbatch_is_cut_along_data_and_fsdp():
  with jax.set_mesh(mesh_of(2, 2, 2)):
    batch = jax.ShapeDtypeStruct((16, 3), jnp.float32)
    traced = jax.make_jaxpr(lambda rows: split(rows, microbatches=2))(batch)
  (cut,) = (one for one in traced.eqns if one.primitive.name == "sharding_constraint")
  assert cut.outvars[0].aval.shape == (2, 8, 3)
  assert cut.params["sharding"].spec == P(None, ("data", "fsdp"), None)


TWO_PROCESSES = """
  import sys
  import jax
  process = int(sys.argv[1])
  jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=process)
  import numpy as np
  from pretrain.mesh import sharding
  mesh = sharding.make_mesh(sharding.MeshSettings(-1, 2, 1))
  rows = sharding.local_rows(mesh, 8)
  local = np.repeat(np.array(rows, np.int32)[:, None], 3, axis=1)
  batch = sharding.to_global(mesh, local)
  weighted = jax.jit(lambda x: (x[:, 0] * 10 ** jax.numpy.arange(8)).sum())(batch)
  devices = [jax.devices()[i] for i in (0, 2, 1, 3)]
  mixed = sharding.make_mesh(sharding.MeshSettings(4), devices=devices)
  apart = sharding.local_rows(mixed, 8)
  batch = sharding.to_global(mixed, np.array(apart, np.int32)[:, None])
  print(apart, int(jax.jit(lambda x: (x[:, 0] * 10 ** jax.numpy.arange(8)).sum())(batch)))
  print(rows, batch.shape, int(weighted))
"""


def test_two_processes_supply_their_own_rows():
  # The port stays bound, so nobody else gets it, while the coordinator of process 0 listens on it.
  reserved = socket.socket()
  reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
  reserved.bind(("localhost", 0))
  port = reserved.getsockname()[1]
  environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PATH": ""}
  command = [sys.executable, "-c", textwrap.dedent(TWO_PROCESSES)]
  started = [
    subprocess.Popen(
      [*command, str(process), f"localhost:{port}"],
      cwd=ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for process in range(2)
  ]
  try:
    outputs = [process.communicate(timeout=120) for process in started]
  finally:
    reserved.close()
    for process in started:
      process.kill()
  assert [process.returncode for process in started] == [0, 0], outputs
  lines = [output.splitlines() for output, _ in outputs]
  assert lines[0][-1] == "[0, 1, 2, 3] (8, 1) 76543210"
  assert lines[1][-1] == "[4, 5, 6, 7] (8, 1) 76543210"
  assert lines[0][-2] == "[0, 1, 4, 5] 76543210"
  assert lines[1][-2] == "[2, 3, 6, 7] 76543210"
