"""Where parameters, their moments and batches lie; names of leaves. On 8 fake CPU devices."""

import hashlib
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
# {path: (shape, where it lies)}; every rule is here, in the order of `sharding.RULES`.
LAYERS = "encoder/trunk/layers"
PARAMETERS = {
  "encoder/embeddings/token/embedding": ((64, 16), P("tensor", "fsdp")),
  "generator/embeddings/token/difference": ((64, 16), P("tensor", "fsdp")),
  "encoder/embeddings/position/embedding": ((24, 16), P(None, "fsdp")),
  "encoder/embeddings/segment/embedding": ((2, 16), P(None, "fsdp")),
  "encoder/trunk/relative_position/embedding": ((8, 4), P(None, "tensor")),
  f"{LAYERS}/attention/query/kernel": ((3, 16, 4, 4), P(None, "fsdp", "tensor", None)),
  f"{LAYERS}/attention/key/kernel": ((3, 16, 4, 4), P(None, "fsdp", "tensor", None)),
  f"{LAYERS}/attention/value/kernel": ((3, 16, 4, 4), P(None, "fsdp", "tensor", None)),
  f"{LAYERS}/attention/value/bias": ((3, 4, 4), P(None, "tensor", None)),
  f"{LAYERS}/attention/output/kernel": ((3, 4, 4, 16), P(None, "tensor", None, "fsdp")),
  f"{LAYERS}/attention/output/bias": ((3, 16), P(None, None)),
  f"{LAYERS}/up/kernel": ((3, 16, 32), P(None, "fsdp", "tensor")),
  f"{LAYERS}/gate/kernel": ((3, 16, 32), P(None, "fsdp", "tensor")),
  f"{LAYERS}/up/bias": ((3, 32), P(None, "tensor")),
  f"{LAYERS}/down/kernel": ((3, 32, 16), P(None, "tensor", "fsdp")),
  f"{LAYERS}/down/bias": ((3, 16), P(None, None)),
  f"{LAYERS}/attention_norm/scale": ((3, 16), P(None, None)),
  f"{LAYERS}/mlp_norm/bias": ((3, 16), P(None, None)),
  "encoder/trunk/first_norm/scale": ((16,), P(None)),
  "encoder/embeddings/norm/bias": ((16,), P(None)),
  "generator/inner_norms/scale": ((2, 16), P(None, None)),
  "heads/mlm/dense/kernel": ((16, 16), P("fsdp", None)),
  "generator/projection/kernel": ((16, 16), P("fsdp", None)),
  "generator/projection/bias": ((16,), P(None)),
  "generator/mixture/kernel": ((16, 1), P("fsdp", None)),
  "heads/rtd/kernel": ((16, 1), P("fsdp", None)),
  "heads/rtd/bias": ((1,), P(None)),
  "generator/mlm_head/bias": ((64,), P("tensor")),
  "generator/mlm_head_1/bias": ((64,), P("tensor")),
  "heads/mlm/bias": ((64,), P("tensor")),
  "heads/clm/bias": ((64,), P("tensor")),
  "heads/classification/output/kernel": ((16, 3), P(None, None)),
  "heads/question_answering/kernel": ((16, 2), P(None, None)),
  "heads/tagging/bias": ((3,), P(None)),
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


TREE = nested({path: shape for path, (shape, _) in PARAMETERS.items()})


def mesh_of(data: int, fsdp: int, tensor: int):
  return sharding.make_mesh(MeshSettings(data, fsdp, tensor), devices=jax.devices()[: data * fsdp * tensor])


def flat_specs(mesh, tree, **options) -> dict:
  leaves = trees.by_path(sharding.shardings(mesh, tree, **options))
  return {path: leaf.spec for path, leaf in leaves.items()}


def test_parameters_and_their_moments_lie_where_the_table_says():
  found = {path: sharding.partition_spec(path, len(shape)) for path, (shape, _) in PARAMETERS.items()}
  expected = {path: spec for path, (_, spec) in PARAMETERS.items()}
  assert found == expected
  mesh = mesh_of(2, 2, 2)
  state = flat_specs(mesh, jax.eval_shape(optax.adamw(1e-3).init, TREE))
  assert flat_specs(mesh, TREE) == expected and state["0/count"] == P()
  for path, spec in expected.items():
    assert state[f"0/mu/{path}"] == state[f"0/nu/{path}"] == spec, path
  # A vocabulary that the tensor axis does not divide stays whole.
  tree = nested({"encoder/embeddings/token/embedding": (30_522, 16), "heads/mlm/bias": (30_522,)})
  four, two = flat_specs(mesh_of(1, 2, 4), tree), flat_specs(mesh_of(1, 4, 2), tree)
  assert four == {"encoder/embeddings/token/embedding": P(None, "fsdp"), "heads/mlm/bias": P(None)}
  assert two["heads/mlm/bias"] == P("tensor")


def test_a_shared_update_cuts_the_first_axis_that_is_whole_and_divides():
  found = flat_specs(mesh_of(4, 1, 2), TREE, over_data=True)
  changed = {path: spec for path, spec in found.items() if "data" in spec}
  assert changed == {
    "encoder/embeddings/token/embedding": P("tensor", "data"),
    "generator/embeddings/token/difference": P("tensor", "data"),
    "encoder/embeddings/position/embedding": P("data", "fsdp"),
    "encoder/embeddings/segment/embedding": P(None, "data"),  # 2 rows
    "encoder/trunk/relative_position/embedding": P("data", "tensor"),
    **{
      f"{LAYERS}/attention/{name}/kernel": P(None, "data", "tensor", None)
      for name in ("query", "key", "value")
    },
    f"{LAYERS}/attention/output/kernel": P(None, "tensor", "data", "fsdp"),
    **{f"{LAYERS}/{name}/kernel": P(None, "data", "tensor") for name in ("up", "gate")},
    f"{LAYERS}/down/kernel": P(None, "tensor", "data"),
    **{f"{path}/kernel": P("data", None) for path in ("heads/mlm/dense", "generator/projection")},
    **{f"{path}/kernel": P("data", None) for path in ("generator/mixture", "heads/rtd")},
    **{f"heads/{path}/kernel": P("data", None) for path in ("classification/output", "question_answering")},
  }
  assert not [spec for spec in flat_specs(mesh_of(1, 4, 2), TREE, over_data=True).values() if "data" in spec]


def test_parameters_without_a_rule_are_an_error_that_names_all_of_them():
  for path in ("heads/new/kernel", "encoder/trunk/up/bias", "xnorm/scale"):
    tree = nested({path: (4, 4), "z/new/table": (2, 2), "z/new/number": (4,)})
    with pytest.raises(ConfigError, match=rf"{path} \(4, 4\), z/new/table \(2, 2\); "):
      sharding.shardings(mesh_of(8, 1, 1), tree)
    with pytest.raises(ConfigError, match=path):
      sharding.partition_spec(path, 2)


def test_parameters_are_cut_and_put_together_again():
  values = jax.tree.map(lambda leaf: np.arange(leaf.size, dtype=np.float32).reshape(leaf.shape), TREE)
  for sizes in ((8, 1, 1), (2, 2, 2), (1, 4, 2)):
    placed = jax.device_put(values, sharding.shardings(mesh_of(*sizes), TREE))
    jax.tree.map(np.testing.assert_array_equal, placed, values)
    table = placed["encoder"]["embeddings"]["token"]["embedding"]
    assert table.addressable_shards[0].data.shape == (64 // sizes[2], 16 // sizes[1])
  assert dict(sharding.make_mesh(MeshSettings(-1, 2, 2)).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
  assert dict(sharding.make_mesh(MeshSettings()).shape) == {"data": 8, "fsdp": 1, "tensor": 1}


def test_batches_and_their_microbatches_are_cut_along_data_and_fsdp():
  mesh = mesh_of(2, 2, 2)
  local = {"ids": np.arange(24, dtype=np.int32).reshape(8, 3)}
  batch = sharding.to_global(mesh, local)["ids"]
  assert batch.sharding == sharding.batch_sharding(mesh)
  assert {shard.data.shape for shard in batch.addressable_shards} == {(2, 3)}
  np.testing.assert_array_equal(batch, local["ids"])
  assert sharding.local_rows(mesh, 8) == list(range(8))
  with jax.set_mesh(mesh):
    batch = jax.ShapeDtypeStruct((16, 3), jnp.float32)
    traced = jax.make_jaxpr(lambda rows: split(rows, microbatches=2))(batch)
  (cut,) = (one for one in traced.eqns if one.primitive.name == "sharding_constraint")
  assert cut.outvars[0].aval.shape == (2, 8, 3)
  assert cut.params["sharding"].spec == P(None, ("data", "fsdp"), None)


def test_activations_are_cut_by_the_batch_and_the_width_of_tensor_products_under_a_mesh_alone():
  x = jnp.ones((4, 3, 8))
  assert sharding.constrain(x, "batch", "length", "embed") is x
  with jax.set_mesh(mesh_of(2, 2, 2)):
    step = jax.jit(lambda x: sharding.constrain(x, "batch", None, "mlp") * 2)
    assert step(jnp.ones((8, 3, 16))).sharding.spec == P(("data", "fsdp"), None, "tensor")
    keys = jax.random.split(jax.random.key(0), 8).reshape(2, 4)
    cut = jax.jit(lambda x: sharding.constrain(x, None, "batch"))(keys)
    assert cut.sharding.spec[:2] == (None, ("data", "fsdp"))
    np.testing.assert_array_equal(step(jnp.ones((5, 3, 16))), 2 * np.ones((5, 3, 16)))


def test_leaves_have_paths_digests_and_differences():
  tree = {"b": {"kernel": np.ones((2, 3), np.float32)}, "a": np.zeros(4, np.int32)}
  assert list(trees.by_path(tree)) == ["a", "b/kernel"]
  assert trees.paths(tree) == {"b": {"kernel": "b/kernel"}, "a": "a"}
  state = optax.adam(0.1).init(tree)
  assert list(trees.by_path(state)) == ["0/count", "0/mu/a", "0/mu/b/kernel", "0/nu/a", "0/nu/b/kernel"]
  written = b"['a']" + tree["a"].tobytes() + b"['b']['kernel']" + tree["b"]["kernel"].tobytes()
  assert trees.digest(tree) == hashlib.sha256(written).hexdigest()
  saved = {"b": {"kernel": np.ones((3, 2), np.float32)}, "a": np.zeros(4, np.int64), "c": np.zeros(1)}
  found = trees.differences(tree | {"d": np.zeros(1)}, saved)
  assert [line.split()[0] for line in found] == ["a", "b/kernel", "d", "c"]
  assert "(3, 2)" in found[1] and "int64" in found[0] and "(2, 3)" in found[1]
  assert trees.differences(tree | {"d": np.zeros(1)}, saved, is_exact=False) == found[:3]
  assert trees.differences(tree, jax.eval_shape(lambda: tree)) == []
  assert trees.first_lines(found) == "; ".join(found[:3]) + "; and 1 more"
  assert trees.first_lines(found[:3]) == "; ".join(found[:3])


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
