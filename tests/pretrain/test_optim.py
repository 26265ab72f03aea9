"""Run: python -m pytest tests/pretrain/test_optim.py"""

import dataclasses
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrain import optim
from pretrain.mesh import trees
from pretrain.optim import OptimizerSettings
from pretrain.settings import PRETRAINING

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


def one(settings: OptimizerSettings, start: float, gradient: float) -> float:
  """One number after one update."""
  end, _ = run(settings, {"kernel": jnp.full(1, start)}, [{"kernel": jnp.full(1, gradient)}])
  return float(end["kernel"][0])


# The official numbers.


def test_linear_schedule_is_the_official_one(golden):
  configs = [name for name in golden if name.startswith("lr/") and name.endswith("/cfg")]
  assert configs
  for name in configs:
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


# Schedules.

WSD = {"schedule": "wsd", "learning_rate": 1e-3, "warmup_steps": 10, "decay_steps": 40, "total_steps": 100}
SQRT = WSD | {"decay_shape": "one_minus_sqrt"}
RISE = {0: 0.0, 5: 5e-4, 9: 9e-4, 10: 1e-3, 60: 1e-3}  # of 'wsd': the last 40 of 100 steps fall
SCHEDULES = {
  # 1 + (10 - t) / 8 from step 2 on.
  "linear": (
    {
      "learning_rate": 2.0,
      "total_steps": 10,
      "warmup_steps": 2,
      "end_learning_rate": 1.0,
      "schedule": "linear",
    },
    {0: 0.0, 1: 1.0, 2: 2.0, 6: 1.5, 9: 1.125, 10: 1.0, 20: 1.0},
  ),
  # It decays from step zero under its warm-up.
  "google": (
    {"schedule": "electra_google", "total_steps": 100, "warmup_steps": 10},
    {0: 0.0, 5: 0.5 * 0.95, 10: 0.9, 50: 0.5, 100: 0.0},
  ),
  "constant": ({"learning_rate": 3.0, "warmup_steps": 4}, {0: 0.0, 1: 0.75, 4: 3.0, 1000: 3.0}),
  "wsd": (WSD, RISE | {61: 9.75e-4, 70: 7.5e-4, 90: 2.5e-4, 99: 2.5e-5, 100: 0.0}),
  "wsd by a root": (SQRT, RISE | {61: 8.418861e-4, 70: 5e-4, 90: 1.339746e-4, 99: 1.25791e-5, 100: 0.0}),
  "wsd to an end": (
    SQRT | {"end_learning_rate": 1e-4},
    RISE | {61: 8.576975e-4, 70: 5.5e-4, 90: 2.205771e-4, 99: 1.113212e-4, 100: 1e-4},
  ),
  "wsd without a fall": (WSD | {"decay_steps": 0}, RISE | {61: 1e-3, 100: 1e-3}),
}


def test_schedules_have_the_rates_worked_out_by_hand(subtests):
  assert set(optim.SCHEDULES) == set(PRETRAINING.kinds["optimizer.schedule"].choices)
  for name, (changes, expected) in SCHEDULES.items():
    schedule = optim.make_schedule(dataclasses.replace(PLAIN, **changes))
    with subtests.test(name):
      assert {step: float(schedule(step)) for step in expected} == pytest.approx(expected, rel=2e-6)


def test_late_learning_rates_keep_their_digits_in_float32():
  settings = OptimizerSettings(learning_rate=1.0, total_steps=1_950_000, warmup_steps=10_000)
  last = float(jax.jit(optim.make_schedule(settings))(1_949_999))
  assert last == pytest.approx(1 / 1_940_000, rel=1e-6)  # 1 - done / all would be off by 10 %


# Adam.


def test_single_updates_are_those_worked_out_by_hand(subtests):
  corrected, raw = {"adam_eps_placement": "corrected"}, {"adam_bias_correction": False, "adam_eps": 1e-12}
  warmup = {"schedule": "linear", "warmup_steps": 5, "weight_decay": 0.5}
  relative = {"weight_decay": 0.25, "decay_scale": "rate_over_peak"}
  for name, changes, start, gradient, expected, rel in (
    # sqrt(v) = 1e-6 sqrt(0.02); step = sqrt(0.02) / 0.1 * 1e-7 / (sqrt(v) + 1e-6)
    ("eps as fairseq", {}, 0.0, 1e-6, -(0.02**0.5) / (0.02**0.5 + 1), 1e-5),
    ("eps as optax", corrected, 0.0, 1e-6, -0.5, 1e-5),
    ("raw moments", raw | {"adam_b2": 0.999}, 0.0, 2.0, -0.1 / 0.001**0.5, 1e-5),
    ("raw, eps as optax", raw | corrected | {"adam_b2": 0.999}, 0.0, 2.0, -0.1 / 0.001**0.5, 1e-5),
    # 1 - 0.999 in float32 would be wrong by 1.3e-5.
    ("exact correction", {"adam_b2": 0.999, "adam_eps": 0.0}, 0.0, 0.3, -1.0, 1e-6),
    ("the first of a warm-up", warmup, 1.0, 1.0, 1.0, 0),
    ("decay by the rate", {"learning_rate": 0.5, "weight_decay": 0.25}, 2.0, 0.0, 1.75, 1e-6),
    ("decay by the fraction of a peak", relative | {"learning_rate": 1e-3}, 2.0, 0.0, 1.5, 1e-6),
    ("decay by the fraction of another", relative | {"learning_rate": 0.5}, 2.0, 0.0, 1.5, 1e-6),
  ):
    with subtests.test(name):
      assert one(dataclasses.replace(PLAIN, **changes), start, gradient) == pytest.approx(expected, rel=rel)


def test_the_corrected_placement_is_optax():
  random = np.random.default_rng(0)
  params = {"kernel": jnp.asarray(random.standard_normal(64), jnp.float32)}
  grads = [{"kernel": jnp.asarray(random.standard_normal(64) * 10.0**n, jnp.float32)} for n in range(-4, 1)]
  for eps in (1e-6, 1e-2):
    settings = dataclasses.replace(PLAIN, adam_eps=eps, adam_eps_placement="corrected")
    ours, _ = run(settings, params, grads)
    theirs, optimizer = params, optax.adam(1.0, b1=settings.adam_b1, b2=settings.adam_b2, eps=eps)
    state = optimizer.init(params)
    for gradient in grads:
      updates, state = optimizer.update(gradient, state)
      theirs = optax.apply_updates(theirs, updates)
    np.testing.assert_allclose(ours["kernel"], theirs["kernel"], rtol=2e-5, atol=2e-5)


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


TOKENS = "encoder/embeddings/token/embedding"
KERNELS = {TOKENS, "encoder/trunk/relative_position/embedding", "encoder/trunk/layers/up/kernel"}


def test_decay_reaches_every_parameter_or_spares_biases_and_norms_and_leaves_frozen_ones_alone():
  zeros = jax.tree.map(jnp.zeros_like, parameters())
  everything = set(trees.by_path(zeros))
  for decay, decayed in (("all", everything), ("no_bias_norm", KERNELS)):
    settings = dataclasses.replace(PLAIN, weight_decay=0.5, decay=decay)
    for frozen in (nothing, lambda path: path.startswith("encoder/embeddings/token")):
      end, state = run(settings, parameters(), [zeros], frozen=frozen)
      found = {path for path, leaf in trees.by_path(end).items() if np.all(leaf == 0.5)}
      assert found == {path for path in decayed if not frozen(path)}
      assert all(np.all(leaf == 1.0) for path, leaf in trees.by_path(end).items() if path not in found)
    grads = jax.tree.map(jnp.ones_like, parameters())
    end, state = run(settings, parameters(), [grads, grads], frozen=frozen)
    np.testing.assert_array_equal(end["encoder"]["embeddings"]["token"]["embedding"], 1.0)
    assert not np.array_equal(end["encoder"]["trunk"]["layers"]["up"]["kernel"], np.ones((2, 2)))
    assert not [path for path, _ in jax.tree.leaves_with_path(state) if "token" in jax.tree_util.keystr(path)]


def test_moments_are_float32_even_for_lower_gradients():
  grads = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), parameters())
  for placement in ("uncorrected", "corrected"):
    _, state = run(dataclasses.replace(PLAIN, adam_eps_placement=placement), parameters(), [grads])
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state)} == {"float32", "int32"}


def test_clipping_scales_only_what_is_too_long_and_the_norm_leaves_frozen_parameters_out():
  whole = {"a": {"kernel": jnp.full(1, 3.0)}, "b": {"kernel": jnp.full((1, 1), 4.0)}}
  assert float(optim.gradient_norm(whole, frozen=nothing)) == pytest.approx(5.0)
  assert float(optim.gradient_norm(whole, frozen=lambda path: path == "a/kernel")) == pytest.approx(4.0)
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


# StableAdamW.

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
  # Without a memory it compares a gradient with itself.
  bare = dataclasses.replace(STABLE, adam_b2=0.0, weight_decay=0.0, adam_b1=0.0)
  made, _ = run(bare, start, grads[:1])
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
  (whole, _), (cut, _) = (
    run(STABLE, {"a": put(start)}, [{"a": put(grad)} for grad in grads])
    for put in (jnp.asarray, lambda array: jax.device_put(array, place))
  )
  np.testing.assert_allclose(cut["a"], whole["a"], rtol=1e-6)


# Updates that must not be applied leave the state as it was, and overflow is foreseen.


def test_an_update_that_is_not_good_returns_the_state_bit_for_bit():
  params = parameters()
  for frozen in (nothing, lambda path: path.startswith("heads")):
    optimizer, _ = optim.make_optimizer(PLAIN, params=params, frozen=frozen)
    update = jax.jit(optimizer.update)
    _, state = update(jax.tree.map(lambda leaf: 0.3 * leaf, params), optimizer.init(params), params)
    for value in (np.nan, np.inf, 1e30):
      bad = jax.tree.map(lambda leaf, value=value: jnp.full_like(leaf, value), params)
      _, kept = update(bad, state, params, is_good=jnp.bool_(False))
      jax.tree.map(np.testing.assert_array_equal, kept, state)
    _, moved = update(params, state, params, is_good=jnp.bool_(True))
    assert all(not np.array_equal(*pair) for pair in zip(jax.tree.leaves(moved), jax.tree.leaves(state)))


def test_parameters_said_to_stay_finite_do(subtests):
  shape, exponents = {"w": jnp.zeros(3)}, range(-20, 127, 7)
  for placement, bias_correction, b1, eps in itertools.product(
    ("uncorrected", "corrected"), (True, False), (0.0, 0.9), (1e-6, 1e-30)
  ):
    options = {"adam_eps_placement": placement, "adam_bias_correction": bias_correction, "adam_eps": eps}
    settings, answers = dataclasses.replace(PLAIN, adam_b1=b1, weight_decay=0.01, **options), []
    for moment, exponent in itertools.product((2.0**63, 1e-3), exponents):
      rate = 2.0**exponent
      at = dataclasses.replace(settings, learning_rate=rate)
      optimizer, _ = optim.make_optimizer(at, params=shape, frozen=nothing)
      largest = float(np.finfo(np.float32).max) if eps == 1e-6 and exponent < 50 else 1.0
      params = {"w": jnp.asarray([1.0, -(2.0 ** abs(exponent)), largest])}
      # The largest directions: the second moment has forgotten all, and such a gradient adds nothing to it.
      state, grads = optax.tree.set(optimizer.init(params), mu={"w": jnp.full(3, -moment)}), shape
      if b1 == 0.0:
        grads = {"w": jnp.full(3, -moment)}
      said = bool(optim.stays_finite(at)(params, state, jnp.float32(moment), jnp.float32(rate)))
      updates, _ = optimizer.update(grads, state, params)
      answers.append((said, bool(np.all(np.isfinite(optax.apply_updates(params, updates)["w"])))))
    with subtests.test(f"{options} {b1}"):
      assert {(True, True), (False, False)} <= set(answers) and (True, False) not in answers


def test_at_rates_in_use_nothing_is_read_and_beyond_them_doubtful_parameters_are_refused(subtests):
  params = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
  optimizer, _ = optim.make_optimizer(PLAIN, params=params, frozen=nothing)
  state = optimizer.init(params)
  for value, rate, norm, answer in (
    (1.0, 1e12, 1.0, True),  # known from the moments
    (1.0, 1e30, 1.0, False),
    (1.0, 1e12, 1e19, False),
    (np.nan, 1e12, 1.0, False),
    (np.inf, 1e12, 1.0, False),
    (1e38, 1e12, 1.0, False),
    (1.0, np.nan, 1.0, False),
    (1.0, np.inf, 1.0, False),
  ):
    with subtests.test(f"{value} {rate} {norm}"):
      stays_finite = optim.stays_finite(dataclasses.replace(PLAIN, learning_rate=rate))
      given = params | {"b": jnp.full(2, value, jnp.float32)}
      assert bool(stays_finite(given, state, jnp.float32(norm), jnp.float32(rate))) is answer
  for rate in (1e-3, 6_000.0):
    known = optim.stays_finite(dataclasses.replace(PLAIN, learning_rate=rate))
    program = jax.make_jaxpr(known)(params, state, jnp.float32(1.0), jnp.float32(rate))
    assert not program.eqns and bool(known(params, state, jnp.float32(1.0), jnp.float32(rate)))


def test_an_update_is_computed_in_place():
  params = {"kernel": jnp.ones((256, 256)), "bias": jnp.ones(256)}
  optimizer, _ = optim.make_optimizer(PLAIN, params=params, frozen=nothing)

  def updated(params, state, grads, is_good):
    updates, state = optimizer.update(grads, state, params, is_good=is_good)
    new = optax.apply_updates(params, updates)
    return jax.tree.map(lambda new, old: jnp.where(is_good, new, old), new, params), state

  shapes = jax.eval_shape(lambda: (params, optimizer.init(params), params, jnp.bool_(True)))
  compiled = jax.jit(updated, donate_argnums=(0, 1)).lower(*shapes).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < params["bias"].nbytes
