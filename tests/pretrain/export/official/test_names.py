"""The table of official names. Run: python -m pytest tests/pretrain/export/official/test_names.py

The checkpoints here are written by hand from the published names and shapes, not by the table.
"""

import jax
import numpy as np
import pytest

from configs import base
from data.errors import DataError
from pretrain.build import build
from pretrain.corruption.masking import TokenIds
from pretrain.export.official import names as official_names

V, D, P, F, R, A = 13, 8, 6, 12, 4, 2  # vocabulary, embed, positions, mlp, buckets, heads


def _network(prefix, num_layers, draw):
  """Tensors of one fairseq encoder network."""
  state = {
    f"{prefix}.embed_tokens.weight": draw(V, D),
    f"{prefix}.embed_positions.weight": draw(P, D),
    f"{prefix}.emb_layer_norm.weight": draw(D),
    f"{prefix}.emb_layer_norm.bias": draw(D),
    f"{prefix}.relative_attention_bias.weight": draw(R, A),
  }
  for i in range(num_layers):
    layer = f"{prefix}.layers.{i}"
    state |= {
      f"{layer}.self_attn.in_proj.weight": draw(3 * D, D),
      f"{layer}.self_attn.in_proj.bias": draw(3 * D),
      f"{layer}.self_attn.out_proj.weight": draw(D, D),
      f"{layer}.self_attn.out_proj.bias": draw(D),
      f"{layer}.fc1.weight": draw(F, D),
      f"{layer}.fc1.bias": draw(F),
      f"{layer}.fc2.weight": draw(D, F),
      f"{layer}.fc2.bias": draw(D),
    }
    for norm in ("self_attn_layer_norm", "final_layer_norm"):
      state |= {f"{layer}.{norm}.weight": draw(D), f"{layer}.{norm}.bias": draw(D)}
  return state


def fairseq_state(*, num_layers=3, share="all", mixture=False, seed=0):
  """A COCO-LM (or, with a mixture, AMOS) checkpoint of random numbers."""
  generator = np.random.default_rng(seed)

  def draw(*shape):
    return generator.normal(size=shape).astype(np.float32)

  main, auxiliary = "encoder.sentence_encoder", "auxiliary.sentence_encoder"
  state = _network(main, num_layers, draw) | _network(auxiliary, 2, draw)
  shared = {
    "all": ("embed_tokens", "embed_positions", "emb_layer_norm"),
    "tokens": ("embed_tokens",),
    "none": (),
  }
  for name in list(state):
    if name.startswith(tuple(f"{auxiliary}.{module}." for module in shared[share])):
      state[name] = state[name.replace("auxiliary", "encoder")]
  state |= {
    "encoder.binary_head.out_proj.weight": draw(1, D),
    "encoder.binary_head.out_proj.bias": draw(1),
    "encoder.lm_head.weight": state[f"{main}.embed_tokens.weight"],
    "encoder.lm_head.bias": draw(V),
    "encoder.seq_head.dense.weight": draw(D, D),
    "encoder.seq_head.dense.bias": draw(D),
    "encoder.seq_head.layer_norm.weight": draw(D),
    "encoder.seq_head.layer_norm.bias": draw(D),
    "auxiliary.lm_head.weight": state[f"{auxiliary}.embed_tokens.weight"],
    "auxiliary.lm_head.bias": draw(V),
    "auxiliary.lm_head.dense.weight": draw(D, D),
    "auxiliary.lm_head.dense.bias": draw(D),
    "auxiliary.lm_head.layer_norm.weight": draw(D),
    "auxiliary.lm_head.layer_norm.bias": draw(D),
  }
  if mixture:
    state["auxiliary.lm_head.layer_mixture.weight"] = draw(1, D)
  return state


def hugging_face_state(prefix=""):
  """An encoder and its heads under Hugging Face names, with segment embeddings."""
  renames = {
    "embed_tokens": "embeddings.word_embeddings",
    "embed_positions": "embeddings.position_embeddings",
    "emb_layer_norm": "embeddings.LayerNorm",
    "layers.": "encoder.layer.",
    "self_attn_layer_norm": "attention.LayerNorm",
    "self_attn.": "attention.self_attn.",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
  }
  state = {}
  for name, array in fairseq_state().items():
    if name.startswith("encoder.sentence_encoder."):
      short = name.removeprefix("encoder.sentence_encoder.")
      for ours, theirs in renames.items():
        short = short.replace(ours, theirs)
      state[prefix + short] = array
  fairseq = fairseq_state()
  state[prefix + "embeddings.token_type_embeddings.weight"] = np.ones((2, D), np.float32)
  state["binary_head.out_proj.weight"] = fairseq["encoder.binary_head.out_proj.weight"]
  state["binary_head.out_proj.bias"] = fairseq["encoder.binary_head.out_proj.bias"]
  return state


def _assert_equal(first, second):
  assert jax.tree.structure(first) == jax.tree.structure(second)
  jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("share", ["all", "tokens", "none"])
def test_fairseq_names_survive_import_and_export(share):
  state = fairseq_state(share=share, mixture=True)
  params, unmatched, *_ = official_names.from_fairseq(state, num_heads=A, share_embeddings=share)
  assert unmatched == ()
  _assert_equal(official_names.to_fairseq(params), state)


def test_import_gives_the_parameters_of_the_recipe():
  config = base.get_config()
  config.model.update(vocab_size=V, hidden_size=D, num_layers=3, num_heads=A, mlp_size=F, max_length=P)
  config.model.relative_buckets = R
  config.corruption.kind = "generator"
  config.generator.update(num_layers=2, share_embeddings="tokens", mixture="adversarial", mlm_layers=(1, 2))
  config.objectives.rtd.weight = config.objectives.clm.weight = config.objectives.scl.weight = 1.0
  config.objectives.scl.head = "projection"
  recipe = build(config, TokenIds(0, 1, 2, 3, 4, V))
  expected = jax.eval_shape(recipe.init, jax.random.key(0))
  state = fairseq_state(share="tokens", mixture=True)
  params = official_names.from_fairseq(state, num_heads=A, share_embeddings="tokens").params
  assert jax.tree.map(np.shape, params) == jax.tree.map(lambda leaf: leaf.shape, expected)


def test_query_key_value_are_the_thirds_of_in_proj_split_into_heads():
  state = fairseq_state()
  attention = official_names.from_fairseq(state, num_heads=A).params["encoder"]["trunk"]["layers"][
    "attention"
  ]
  x = np.random.default_rng(1).normal(size=(5, D)).astype(np.float32)
  fused = x @ state["encoder.sentence_encoder.layers.1.self_attn.in_proj.weight"].T
  fused = fused + state["encoder.sentence_encoder.layers.1.self_attn.in_proj.bias"]
  for third, name in enumerate(("query", "key", "value")):
    ours = np.einsum("nd,dhe->nhe", x, attention[name]["kernel"][1]) + attention[name]["bias"][1]
    theirs = fused[:, third * D : (third + 1) * D].reshape(5, A, D // A)  # heads are contiguous slices
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)  # float32 sums of 8 terms


def test_out_proj_reads_the_heads_side_by_side():
  state = fairseq_state()
  attention = official_names.from_fairseq(state, num_heads=A).params["encoder"]["trunk"]["layers"][
    "attention"
  ]
  x = np.random.default_rng(1).normal(size=(5, A, D // A)).astype(np.float32)
  ours = np.einsum("nhe,hed->nd", x, attention["output"]["kernel"][2])
  theirs = x.reshape(5, D) @ state["encoder.sentence_encoder.layers.2.self_attn.out_proj.weight"].T
  np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)  # float32 sums of 8 terms


def test_eleven_layers_are_stacked_by_number_not_by_letter():
  state = fairseq_state(num_layers=11)
  kernel = official_names.from_fairseq(state, num_heads=A).params["encoder"]["trunk"]["layers"]["up"][
    "kernel"
  ]
  assert kernel.shape == (11, D, F)
  np.testing.assert_array_equal(kernel[10], state["encoder.sentence_encoder.layers.10.fc1.weight"].T)


def test_checkpoint_without_generator_and_heads_gives_the_encoder():
  state = {name: array for name, array in fairseq_state().items() if "encoder.sentence_encoder." in name}
  state = {name: array for name, array in state.items() if name.startswith("encoder.")}
  params, unmatched, *_ = official_names.from_fairseq(state, num_heads=A)
  assert list(params) == ["encoder"]
  assert unmatched == ()


def test_old_prefix_decoder_is_read_as_encoder():
  state = fairseq_state()
  old = {name.replace("encoder.sent", "decoder.sent", 1) if name.startswith("encoder.") else name: array
         for name, array in state.items()}  # fmt: skip
  _assert_equal(*(official_names.from_fairseq(s, num_heads=A).params for s in (state, old)))


def test_unknown_names_are_listed():
  state = fairseq_state() | {"classification_heads.mnli.dense.weight": np.zeros((D, D))}
  assert official_names.from_fairseq(state, num_heads=A).unmatched == (
    "classification_heads.mnli.dense.weight",
  )


def _without(name):
  state = fairseq_state()
  del state[name]
  return state


@pytest.mark.parametrize(
  "name",
  [
    "encoder.sentence_encoder.layers.1.fc2.bias",
    "encoder.sentence_encoder.embed_tokens.weight",
    "encoder.binary_head.out_proj.bias",
    "auxiliary.sentence_encoder.layers.0.fc1.weight",
    "auxiliary.lm_head.bias",
  ],
)
def test_missing_tensor_is_named(name):
  with pytest.raises(DataError, match=f"{name} is missing"):
    official_names.from_fairseq(_without(name), num_heads=A)


@pytest.mark.parametrize(
  "name, shape",
  [
    ("encoder.sentence_encoder.layers.1.fc1.weight", (F + 1, D)),
    ("encoder.sentence_encoder.layers.0.self_attn.in_proj.weight", (2 * D, D)),
    ("encoder.sentence_encoder.relative_attention_bias.weight", (R, A + 1)),
    ("auxiliary.lm_head.bias", (V + 1,)),
    ("encoder.seq_head.dense.bias", (D, 1)),
  ],
)
def test_wrong_shape_is_named(name, shape):
  state = fairseq_state() | {name: np.zeros(shape, np.float32)}
  with pytest.raises(DataError, match=f"tensor {name} has shape"):
    official_names.from_fairseq(state, num_heads=A)


def test_heads_that_do_not_divide_the_width_are_refused():
  with pytest.raises(DataError, match="is not divisible by 3 heads"):
    official_names.from_fairseq(fairseq_state(), num_heads=3)


@pytest.mark.parametrize(
  "name",
  ["encoder.lm_head.weight", "auxiliary.lm_head.weight", "auxiliary.sentence_encoder.embed_positions.weight"],
)
def test_tied_tensors_that_differ_are_refused(name):
  state = fairseq_state()
  state[name] = state[name] + 1.0
  with pytest.raises(DataError, match=f"{name} and .* are one tensor"):
    official_names.from_fairseq(state, num_heads=A)


@pytest.mark.parametrize("prefix", ["", "cocolm.", "amos."])
def test_hugging_face_names_give_the_same_encoder(prefix):
  params, unmatched, *_ = official_names.from_hugging_face(hugging_face_state(prefix), num_heads=A)
  expected = official_names.from_fairseq(fairseq_state(), num_heads=A).params
  assert unmatched == ()
  segment = params["encoder"]["embeddings"].pop("segment")
  assert segment["embedding"].shape == (2, D)
  _assert_equal(params["encoder"], expected["encoder"])
  _assert_equal(params["heads"]["rtd"], expected["heads"]["rtd"])


def test_hugging_face_names_survive_import_and_export():
  state = hugging_face_state()
  _assert_equal(
    official_names.to_hugging_face(official_names.from_hugging_face(state, num_heads=A).params), state
  )


_FINE_TUNED = {
  "fairseq": (
    "classification_heads.sentence_classification_head.",
    "classification_heads.question_answering_head.",
  ),
  "hugging_face": ("classifier.", "qa_outputs."),
}


def _fine_tuned(kind):
  generator = np.random.default_rng(5)
  classifier, span = _FINE_TUNED[kind]
  shapes = {
    f"{classifier}dense.weight": (D, D),
    f"{classifier}dense.bias": (D,),
    f"{classifier}out_proj.weight": (3, D),
    f"{classifier}out_proj.bias": (3,),
  }
  for side in ("start", "end"):
    shapes |= {f"{span}{side}_logits.dense.weight": (1, D), f"{span}{side}_logits.dense.bias": (1,)}
  return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("kind", _FINE_TUNED)
def test_heads_of_fine_tuning_survive_import_and_export(kind):
  official = _fine_tuned(kind)
  if kind == "fairseq":
    state, load, save = fairseq_state() | official, official_names.from_fairseq, official_names.to_fairseq
  else:
    state, load, save = (
      hugging_face_state() | official,
      official_names.from_hugging_face,
      official_names.to_hugging_face,
    )
  params, unmatched, *_ = load(state, num_heads=A)
  assert unmatched == ()
  assert sorted(save(params)) == sorted(state)
  jax.tree.map(np.testing.assert_array_equal, save(params), state)
  classifier, span = _FINE_TUNED[kind]
  output = params["heads"]["classification"]["output"]
  np.testing.assert_array_equal(output["kernel"], official[f"{classifier}out_proj.weight"].T)
  answer = params["heads"]["question_answering"]
  np.testing.assert_array_equal(answer["kernel"][:, 1], official[f"{span}end_logits.dense.weight"][0])
  np.testing.assert_array_equal(answer["bias"][:1], official[f"{span}start_logits.dense.bias"])
