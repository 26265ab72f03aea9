"""Run: python -m pytest tests/pretrain/test_optim.py"""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrain import optim
from pretrain.command import fields
from pretrain.optim import OptimizerSettings

GOLDEN = Path(__file__).parents[3] / "shared" / "goldens" / "h_schedule_optimizer.npz"
# b1 and b2 of fairseq; an eps that matters beside gradients of 1e-6.
PLAIN = OptimizerSettings(
  learning_rate=1.0, total_steps=10, schedule="constant", adam_b1=0.9, weight_decay=0.0
)


def nothing(path: str) -> bool:
  return False


@pytest.fixture(scope="module")
def golden():
  if not GOLDEN.exists():
    pytest.skip("the folder with the official optimizer's numbers is not here")
  with np.load(GOLDEN, allow_pickle=False) as arrays:
    return dict(arrays)


def run(settings: OptimizerSettings, params, gradients, *, frozen=nothing):
  optimizer, _ = optim.make_optimizer(settings, params=params, frozen=frozen)
  state, update = optimizer.init(params), jax.jit(optimizer.update)
  for grads in gradients:
    updates, state = update(grads, state, params)
    params = optax.apply_updates(params, updates)
  return params, state


def test_linear_schedule_is_the_official_one(golden):
  checked = 0
  for name in [name for name in golden if name.startswith("lr/") and name.endswith("/cfg")]:
    peak, warmup, total, end, power = golden[name].tolist()
    assert power == 1
    settings = OptimizerSettings(
      learning_rate=peak, total_steps=int(total), warmup_steps=int(warmup), end_learning_rate=end
    )
    schedule, prefix = optim.make_schedule(settings), name.removesuffix("/cfg")
    ours = [schedule(jnp.int32(step)) for step in golden[f"{prefix}/steps"]]
    # rtol: the figure stated with the golden; both are float32.
    np.testing.assert_allclose(ours, golden[f"{prefix}/lr"], rtol=1e-6, atol=1e-12)
    twin = prefix.replace("lr/", "hf/") + "/lr"
    if twin in golden:
      np.testing.assert_allclose(ours, golden[twin], rtol=1e-6, atol=1e-12)
    checked += 1
  assert checked


def test_adam_with_decay_follows_the_official_trajectory(golden):
  rate, b1, b2, eps, decay = golden["adam/hyper"].tolist()
  steps = sum(name.startswith("adam/grad") and name.endswith("/W") for name in golden)
  gradients = [{"kernel": golden[f"adam/grad{i}/W"], "bias": golden[f"adam/grad{i}/b"]} for i in range(steps)]
  start = {"kernel": golden["adam/init/W"], "bias": golden["adam/init/b"]}
  for kind, weight_decay in (("wd", decay), ("nowd", 0.0)):
    settings = dataclasses.replace(
      PLAIN, learning_rate=rate, adam_b1=b1, adam_b2=b2, adam_eps=eps, weight_decay=weight_decay
    )
    end, _ = run(settings, start, gradients)
    # Only the end: the file's earlier steps are the same array as its last (all hold the end values).
    np.testing.assert_allclose(end["kernel"], golden[f"adam/{kind}/step{steps - 1}/W"], rtol=1e-5)
    np.testing.assert_allclose(end["bias"], golden[f"adam/{kind}/step{steps - 1}/b"], rtol=1e-5)


def test_clipping_is_the_official_one(golden):
  largest = {name.split("/")[1] for name in golden if name.startswith("clip/")}
  whole = {"W": golden["clip/0.0/gW"]}
  for text in largest:
    norm = jnp.float32(golden[f"clip/{text}/norm"])
    clipped = optim.clip_by_norm(whole, norm, max_norm=float(text))
    np.testing.assert_allclose(clipped["W"], golden[f"clip/{text}/gW"], rtol=1e-6)


def test_linear_schedule_starts_at_zero_and_ends_above_the_end_value():
  settings = OptimizerSettings(learning_rate=2.0, total_steps=10, warmup_steps=2, end_learning_rate=1.0)
  schedule = optim.make_schedule(settings)
  # 1 + (10 - t) / 8 from step 2 on.
  expected = {0: 0.0, 1: 1.0, 2: 2.0, 6: 1.5, 9: 1.125, 10: 1.0, 20: 1.0}
  for step, value in expected.items():
    assert float(schedule(step)) == pytest.approx(value, rel=1e-6), step


def test_google_schedule_decays_from_step_zero_under_its_warmup():
  schedule = optim.make_schedule(
    OptimizerSettings(learning_rate=1.0, total_steps=100, schedule="electra_google", warmup_steps=10)
  )
  for step, value in {0: 0.0, 5: 0.5 * 0.95, 10: 0.9, 50: 0.5, 100: 0.0}.items():
    assert float(schedule(step)) == pytest.approx(value, rel=1e-6), step


def test_constant_schedule_stays_at_its_peak():
  settings = dataclasses.replace(PLAIN, learning_rate=3.0, warmup_steps=4)
  schedule = optim.make_schedule(settings)
  assert [float(schedule(step)) for step in (0, 1, 4, 1000)] == [0.0, 0.75, 3.0, 3.0]


def test_late_learning_rates_keep_their_digits_in_float32():
  settings = OptimizerSettings(learning_rate=1.0, total_steps=1_950_000, warmup_steps=10_000)
  last = float(jax.jit(optim.make_schedule(settings))(1_949_999))
  assert last == pytest.approx(1 / 1_940_000, rel=1e-6)  # 1 - done / all would be off by 10 %


def test_first_update_of_a_warmup_changes_nothing():
  params = {"kernel": jnp.ones(3)}
  settings = OptimizerSettings(learning_rate=1.0, total_steps=10, warmup_steps=5, weight_decay=0.5)
  end, _ = run(settings, params, [{"kernel": jnp.ones(3)}])
  np.testing.assert_array_equal(end["kernel"], params["kernel"])


def test_eps_placement_is_what_its_name_says():
  grads = [{"kernel": jnp.full(1, 1e-6)}]
  start = {"kernel": jnp.zeros(1)}
  uncorrected, _ = run(PLAIN, start, grads)
  # sqrt(v) = 1e-6 sqrt(0.02); step = sqrt(0.02) / 0.1 * 1e-7 / (sqrt(v) + 1e-6)
  assert float(uncorrected["kernel"][0]) == pytest.approx(-(0.02**0.5) / (0.02**0.5 + 1), rel=1e-5)
  corrected, _ = run(dataclasses.replace(PLAIN, adam_eps_placement="corrected"), start, grads)
  assert float(corrected["kernel"][0]) == pytest.approx(-0.5, rel=1e-5)


@pytest.mark.parametrize("placement", ["uncorrected", "corrected"])
def test_without_bias_correction_the_first_step_is_the_ratio_of_raw_moments(placement):
  settings = dataclasses.replace(
    PLAIN, adam_b2=0.999, adam_bias_correction=False, adam_eps=1e-12, adam_eps_placement=placement
  )
  end, _ = run(settings, {"kernel": jnp.zeros(1)}, [{"kernel": jnp.full(1, 2.0)}])
  assert float(end["kernel"][0]) == pytest.approx(-0.1 / 0.001**0.5, rel=1e-5)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_the_corrected_placement_is_optax(eps):
  settings = dataclasses.replace(PLAIN, adam_eps=eps, adam_eps_placement="corrected")
  random = np.random.default_rng(0)
  params = {"kernel": jnp.asarray(random.standard_normal(64), jnp.float32)}
  grads = [{"kernel": jnp.asarray(random.standard_normal(64) * 10.0**n, jnp.float32)} for n in range(-4, 1)]
  ours, _ = run(settings, params, grads)
  theirs, optimizer = params, optax.adam(1.0, b1=settings.adam_b1, b2=settings.adam_b2, eps=eps)
  state = optimizer.init(params)
  for gradient in grads:
    updates, state = optimizer.update(gradient, state)
    theirs = optax.apply_updates(theirs, updates)
  np.testing.assert_allclose(ours["kernel"], theirs["kernel"], rtol=2e-5, atol=2e-5)


def test_bias_correction_is_exact_at_the_first_step():
  settings = dataclasses.replace(PLAIN, adam_b2=0.999, adam_eps=0.0)
  end, _ = run(settings, {"kernel": jnp.zeros(1)}, [{"kernel": jnp.full(1, 0.3)}])
  # 1 - 0.999 in float32 would be wrong by 1.3e-5.
  assert float(end["kernel"][0]) == pytest.approx(-1.0, rel=1e-6)


def parameters():
  ones = jnp.ones((2, 2))
  return {
    "encoder": {
      "embeddings": {"token": {"embedding": ones}, "norm": {"scale": ones[0], "bias": ones[0]}},
      "trunk": {
        "relative_position": {"embedding": ones},
        "layers": {"up": {"kernel": ones, "bias": ones}, "mlp_norm": {"scale": ones, "bias": ones}},
      },
    },
    "heads": {"clm": {"bias": ones[0]}},
  }


def decayed_paths(settings: OptimizerSettings, *, frozen=nothing) -> set[str]:
  zeros = jax.tree.map(jnp.zeros_like, parameters())
  end, _ = run(settings, parameters(), [zeros], frozen=frozen)
  flat = jax.tree_util.tree_leaves_with_path(end)
  names = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in flat}
  assert all(np.all(leaf == 1.0) or np.all(leaf == 0.5) for leaf in names.values())
  return {name for name, leaf in names.items() if np.all(leaf == 0.5)}


def test_decay_all_reaches_every_parameter():
  assert len(decayed_paths(dataclasses.replace(PLAIN, weight_decay=0.5, decay="all"))) == 9


KERNELS = {
  "encoder/embeddings/token/embedding",
  "encoder/trunk/relative_position/embedding",
  "encoder/trunk/layers/up/kernel",
}


def test_decay_no_bias_norm_spares_biases_and_norms():
  settings = dataclasses.replace(PLAIN, weight_decay=0.5, decay="no_bias_norm")
  assert decayed_paths(settings) == KERNELS


@pytest.mark.parametrize("decay", ["all", "no_bias_norm"])
def test_frozen_leaves_are_neither_updated_nor_decayed_and_have_no_state(decay):
  def frozen(path: str) -> bool:
    return path.startswith("encoder/embeddings/token")

  settings = dataclasses.replace(PLAIN, weight_decay=0.5, decay=decay)
  assert "encoder/embeddings/token/embedding" not in decayed_paths(settings, frozen=frozen)
  grads = jax.tree.map(jnp.ones_like, parameters())
  end, state = run(settings, parameters(), [grads, grads], frozen=frozen)
  np.testing.assert_array_equal(end["encoder"]["embeddings"]["token"]["embedding"], 1.0)
  assert not np.array_equal(end["encoder"]["trunk"]["layers"]["up"]["kernel"], np.ones((2, 2)))
  paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
  assert not [path for path in paths if "token" in path]


@pytest.mark.parametrize("placement", ["uncorrected", "corrected"])
def test_moments_are_float32_even_for_lower_gradients(placement):
  settings = dataclasses.replace(PLAIN, adam_eps_placement=placement)
  grads = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), parameters())
  _, after = run(settings, parameters(), [grads])
  _, before = run(settings, parameters(), [])
  for state in (before, after):
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype(jnp.float32), jnp.dtype(jnp.int32)}


def test_gradient_norm_leaves_frozen_parameters_out():
  grads = {"a": {"kernel": jnp.full(1, 3.0)}, "b": {"kernel": jnp.full((1, 1), 4.0)}}
  assert float(optim.gradient_norm(grads, frozen=nothing)) == pytest.approx(5.0)
  assert float(optim.gradient_norm(grads, frozen=lambda path: path == "a/kernel")) == pytest.approx(4.0)


def test_clipping_scales_only_what_is_too_long():
  grads = {"kernel": jnp.array([3.0, 4.0], jnp.bfloat16)}
  assert optim.clip_by_norm(grads, jnp.float32(5.0), max_norm=0.0) is grads
  np.testing.assert_array_equal(
    optim.clip_by_norm(grads, jnp.float32(5.0), max_norm=6.0)["kernel"], grads["kernel"]
  )
  tiny = optim.clip_by_norm({"kernel": jnp.ones(1)}, jnp.float32(1e-6), max_norm=5e-7)
  assert float(tiny["kernel"][0]) == pytest.approx(0.25)  # 5e-7 / (1e-6 + 1e-6)
  halved = optim.clip_by_norm(grads, jnp.float32(5.0), max_norm=2.5)["kernel"]
  assert halved.dtype == jnp.bfloat16
  np.testing.assert_allclose(halved.astype(jnp.float32), [1.5, 2.0], rtol=1e-2)  # bfloat16


def test_every_schedule_that_a_config_may_name_is_there():
  assert set(optim.SCHEDULES) == set(fields.kinds()["optimizer.schedule"].choices)


@pytest.mark.parametrize(
  ("fields", "expected"),
  [
    ({"decay_shape": "linear"}, {61: 9.75e-4, 70: 7.5e-4, 90: 2.5e-4, 99: 2.5e-5, 100: 0.0}),
    (
      {"decay_shape": "one_minus_sqrt"},
      {61: 8.418861e-4, 70: 5e-4, 90: 1.339746e-4, 99: 1.25791e-5, 100: 0.0},
    ),
    (
      {"decay_shape": "one_minus_sqrt", "end_learning_rate": 1e-4},
      {61: 8.576975e-4, 70: 5.5e-4, 90: 2.205771e-4, 99: 1.113212e-4, 100: 1e-4},
    ),
    ({"decay_steps": 0}, {61: 1e-3, 100: 1e-3}),
  ],
)
def test_a_stable_phase_ends_in_a_fall(fields, expected):
  # Worked out by hand: peak 1e-3, 10 steps of warm-up, the last 40 of 100 fall.
  sizes = {"learning_rate": 1e-3, "warmup_steps": 10, "decay_steps": 40, "total_steps": 100}
  schedule = optim.make_schedule(dataclasses.replace(PLAIN, schedule="wsd", **(sizes | fields)))
  for step, rate in ({0: 0.0, 5: 5e-4, 9: 9e-4, 10: 1e-3, 60: 1e-3} | expected).items():
    assert float(schedule(step)) == pytest.approx(rate, rel=2e-6), step


STABLE = dataclasses.replace(
  PLAIN,
  learning_rate=0.1,
  adam_eps_placement="corrected",
  weight_decay=0.1,
  update_clipping="stable_adamw",
)


def test_stable_adamw_is_the_one_worked_out_by_hand():
  start, grads = {"a": jnp.float32([1, -2])}, [{"a": jnp.float32([3, 4])}, {"a": jnp.float32([30, -40])}]
  first, _ = run(STABLE, start, grads[:1])
  np.testing.assert_allclose(first["a"], [0.89000003, -2.07999998], rtol=1e-6)
  second, _ = run(STABLE, start, grads)
  np.testing.assert_allclose(second["a"], [0.82627574, -2.01725107], rtol=1e-6)


def test_stable_adamw_without_a_memory_compares_a_gradient_with_itself():
  bare = dataclasses.replace(STABLE, adam_b2=0.0, weight_decay=0.0, adam_b1=0.0)
  made, _ = run(bare, {"a": jnp.float32([1, -2])}, [{"a": jnp.float32([3, 4])}])
  np.testing.assert_allclose(made["a"], [0.9, -2.1], rtol=1e-6)


def test_layers_of_a_stack_are_tensors_of_their_own():
  grads = [jax.random.normal(jax.random.key(step), (2, 3, 4)) for step in range(3)]
  grads[2] = grads[2].at[0].multiply(50.0)  # a surprise in one layer
  start = jnp.ones((2, 3, 4))
  stacked, _ = run(STABLE, {"layers": {"up": start}}, [{"layers": {"up": grad}} for grad in grads])
  apart, _ = run(STABLE, {"0": start[0], "1": start[1]}, [{"0": grad[0], "1": grad[1]} for grad in grads])
  np.testing.assert_allclose(stacked["layers"]["up"], jnp.stack([apart["0"], apart["1"]]), rtol=1e-6)
  whole, _ = run(STABLE, {"up": start}, [{"up": grad} for grad in grads])
  assert float(jnp.max(jnp.abs(whole["up"] - stacked["layers"]["up"]))) > 1e-2


def test_a_sharded_tensor_has_one_mean():
  mesh = jax.make_mesh((4,), ("fsdp",))
  place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
  start, grads = jnp.ones((8, 2)), [jnp.arange(16.0).reshape(8, 2) ** power for power in (1, 3)]
  whole, _ = run(STABLE, {"a": start}, [{"a": grad} for grad in grads])
  cut, _ = run(
    STABLE, {"a": jax.device_put(start, place)}, [{"a": jax.device_put(grad, place)} for grad in grads]
  )
  np.testing.assert_allclose(cut["a"], whole["a"], rtol=1e-6)


def test_decay_by_the_fraction_of_the_peak_does_not_depend_on_the_peak():
  start, grads = {"a": jnp.float32([2.0])}, [{"a": jnp.float32([0.0])}]
  for rate in (1e-3, 0.5):
    settings = dataclasses.replace(PLAIN, learning_rate=rate, weight_decay=0.25, decay_scale="rate_over_peak")
    assert float(run(settings, start, grads)[0]["a"][0]) == pytest.approx(1.5)
