"""The table of official names.

The checkpoints here are written by hand from the published names and shapes, not by the table.
"""

import re

import numpy as np

from pretrain.export import official, tensor_rows
from tests.pretrain.export.refusals import failing
from tests.pretrain.export.stock_cases import assert_same_params

V, D, P, F, R, A = 13, 8, 6, 12, 4, 2  # vocabulary, embed, positions, mlp, buckets, heads


def _pairs(draw, prefix: str, shapes: dict) -> dict:
  """A weight of each shape, and a bias of its first axis."""
  state = {}
  for name, shape in shapes.items():
    state |= {f"{prefix}.{name}.weight": draw(*shape), f"{prefix}.{name}.bias": draw(shape[0])}
  return state


def _draw(seed: int):
  generator = np.random.default_rng(seed)
  return lambda *shape: generator.normal(size=shape).astype(np.float32)


def _network(prefix, num_layers, draw):
  """Tensors of one fairseq encoder network."""
  state = {f"{prefix}.embed_tokens.weight": draw(V, D), f"{prefix}.embed_positions.weight": draw(P, D)}
  state |= {f"{prefix}.relative_attention_bias.weight": draw(R, A)}
  state |= _pairs(draw, prefix, {"emb_layer_norm": (D,)})
  parts = {"self_attn.in_proj": (3 * D, D), "self_attn.out_proj": (D, D), "fc1": (F, D), "fc2": (D, F)}
  for number in range(num_layers):
    state |= _pairs(
      draw, f"{prefix}.layers.{number}", parts | {"self_attn_layer_norm": (D,), "final_layer_norm": (D,)}
    )
  return state


def fairseq_state(*, num_layers=3, share="all", mixture=False):
  """A COCO-LM (or, with a mixture, AMOS) checkpoint of random numbers."""
  draw, main, auxiliary = _draw(0), "encoder.sentence_encoder", "auxiliary.sentence_encoder"
  state = _network(main, num_layers, draw) | _network(auxiliary, 2, draw)
  tables = ("embed_tokens", "embed_positions", "emb_layer_norm")
  shared = {"all": tables, "tokens": tables[:1], "none": ()}[share]
  for name in list(state):
    if name.startswith(tuple(f"{auxiliary}.{module}." for module in shared)):
      state[name] = state[name.replace("auxiliary", "encoder")]
  heads = {"binary_head.out_proj": (1, D), "seq_head.dense": (D, D), "seq_head.layer_norm": (D,)}
  state |= _pairs(draw, "encoder", heads)
  state |= _pairs(draw, "auxiliary.lm_head", {"dense": (D, D), "layer_norm": (D,)})
  for network in ("encoder", "auxiliary"):
    state[f"{network}.lm_head.weight"] = state[f"{network}.sentence_encoder.embed_tokens.weight"]
    state[f"{network}.lm_head.bias"] = draw(V)
  if mixture:
    state["auxiliary.lm_head.layer_mixture.weight"] = draw(1, D)
  return state


def hugging_face_state(prefix=""):
  """An encoder and its heads under Hugging Face names, with segment embeddings."""
  renames = {
    "embed_tokens": "embeddings.word_embeddings",
    "embed_positions": "embeddings.position_embeddings",
  }
  renames |= {"emb_layer_norm": "embeddings.LayerNorm", "layers.": "encoder.layer."}
  renames |= {"self_attn_layer_norm": "attention.LayerNorm", "self_attn.": "attention.self_attn."}
  renames |= {"fc1": "intermediate.dense", "fc2": "output.dense", "final_layer_norm": "output.LayerNorm"}
  state, fairseq = {}, fairseq_state()
  for name, array in fairseq.items():
    if name.startswith("encoder.sentence_encoder."):
      short = name.removeprefix("encoder.sentence_encoder.")
      for ours, theirs in renames.items():
        short = short.replace(ours, theirs)
      state[prefix + short] = array
  state[prefix + "embeddings.token_type_embeddings.weight"] = np.ones((2, D), np.float32)
  for leaf in ("weight", "bias"):
    state[f"binary_head.out_proj.{leaf}"] = fairseq[f"encoder.binary_head.out_proj.{leaf}"]
  return state


_FINE_TUNED = {  # classification head, question-answering head
  "fairseq": (
    "classification_heads.sentence_classification_head.",
    "classification_heads.question_answering_head.",
  ),
  "hugging_face": ("classifier.", "qa_outputs."),
}


def _heads(kind: str) -> dict:
  """Heads of fine-tuning under official names."""
  classifier, span = (prefix.rstrip(".") for prefix in _FINE_TUNED[kind])
  state = _pairs(_draw(5), classifier, {"dense": (D, D), "out_proj": (3, D)})
  return state | _pairs(_draw(6), span, {f"{side}_logits.dense": (1, D) for side in ("start", "end")})


def _attention(state: dict) -> dict:
  params = official.from_fairseq(state, num_heads=A).params
  return params["encoder"]["trunk"]["layers"]["attention"]


def test_every_tensor_is_read_and_the_table_gives_it_back():
  for share in ("all", "tokens", "none"):
    state, heads = fairseq_state(share=share, mixture=True), _heads("fairseq")
    params, unmatched, *_ = official.from_fairseq(state | heads, num_heads=A, share_embeddings=share)
    assert unmatched == () and official.find_sharing(state) == share
    _same_tensors(params, *official.fairseq_parts(share), expected=state | heads)
  state = hugging_face_state() | _heads("hugging_face")
  port, unmatched, *_ = official.from_hugging_face(state, num_heads=A)
  assert unmatched == ()
  _same_tensors(port, official.PORT_PARTS, (), expected=state)
  for kind, read in (("fairseq", params), ("hugging_face", port)):
    (classifier, span), theirs, heads = _FINE_TUNED[kind], _heads(kind), read["heads"]
    output, answer = heads["classification"]["output"], heads["question_answering"]
    np.testing.assert_array_equal(output["kernel"], theirs[f"{classifier}out_proj.weight"].T)
    np.testing.assert_array_equal(answer["kernel"][:, 1], theirs[f"{span}end_logits.dense.weight"][0])
    np.testing.assert_array_equal(answer["bias"][:1], theirs[f"{span}start_logits.dense.bias"])


def _same_tensors(params, parts, ties, *, expected) -> None:
  """Writes by the table; start and end of an answer are one tensor in it."""
  found = tensor_rows.write(params, parts, ties=ties)
  whole = {name: array for name, array in expected.items() if "_logits." not in name}
  assert found.keys() - whole.keys() == {
    name for name in found if re.search(r"(answering_head|qa_outputs)\.\w+$", name)
  }
  assert_same_params({name: found[name] for name in whole}, whole)


def test_heads_are_contiguous_slices_of_the_thirds_of_in_proj_and_of_out_proj():
  state, rng = fairseq_state(num_layers=11), np.random.default_rng(1)
  attention, layer = _attention(state), "encoder.sentence_encoder.layers.10.self_attn"  # 10 is behind 2
  assert attention["query"]["kernel"].shape == (11, D, A, D // A)
  x = rng.normal(size=(5, D)).astype(np.float32)
  fused = x @ state[f"{layer}.in_proj.weight"].T + state[f"{layer}.in_proj.bias"]
  for third, name in enumerate(("query", "key", "value")):
    ours = np.einsum("nd,dhe->nhe", x, attention[name]["kernel"][10]) + attention[name]["bias"][10]
    theirs = fused[:, third * D : (third + 1) * D].reshape(5, A, D // A)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)  # float32 sums of 8 terms
  x = rng.normal(size=(5, A, D // A)).astype(np.float32)
  ours = np.einsum("nhe,hed->nd", x, attention["output"]["kernel"][10])
  theirs = x.reshape(5, D) @ state[f"{layer}.out_proj.weight"].T
  np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_other_spellings_and_parts_of_a_checkpoint_are_read():
  state = fairseq_state()
  expected = official.from_fairseq(state, num_heads=A).params
  alone = {name: array for name, array in state.items() if name.startswith("encoder.sentence_encoder.")}
  params, unmatched, *_ = official.from_fairseq(alone, num_heads=A)
  assert list(params) == ["encoder"] and unmatched == ()
  old = {name.replace("encoder.", "decoder.", 1) if name.startswith("encoder.") else name: array
         for name, array in state.items()}  # fmt: skip
  assert_same_params(official.from_fairseq(old, num_heads=A).params, expected)
  more = state | {"classification_heads.mnli.dense.weight": np.zeros((D, D))}
  found = official.from_fairseq(more, num_heads=A)
  assert found.unmatched == ("classification_heads.mnli.dense.weight",) and set(found.matched) == {*state}
  for prefix in ("", "cocolm.", "amos."):
    params, unmatched, *_ = official.from_hugging_face(hugging_face_state(prefix), num_heads=A)
    assert unmatched == ()
    assert params["encoder"]["embeddings"].pop("segment")["embedding"].shape == (2, D)
    assert_same_params(params["encoder"], expected["encoder"])
    assert_same_params(params["heads"]["rtd"], expected["heads"]["rtd"])


def test_missing_wrong_and_untied_tensors_are_named():
  state, main = fairseq_state(), "encoder.sentence_encoder"
  missing = (f"{main}.layers.1.fc2.bias", f"{main}.embed_tokens.weight", "encoder.binary_head.out_proj.bias")
  missing += ("auxiliary.sentence_encoder.layers.0.fc1.weight", "auxiliary.lm_head.bias")
  rows = [({key: state[key] for key in state if key != name}, A, f"{name} is missing") for name in missing]
  shapes = {f"{main}.layers.1.fc1.weight": (F + 1, D), f"{main}.relative_attention_bias.weight": (R, A + 1)}
  shapes |= {f"{main}.layers.0.self_attn.in_proj.weight": (2 * D, D), "encoder.seq_head.dense.bias": (D, 1)}
  shapes |= {"auxiliary.lm_head.bias": (V + 1,)}
  rows += [(state | {name: np.zeros(shape)}, A, f"{name} has shape") for name, shape in shapes.items()]
  untied = ("encoder.lm_head.weight", "auxiliary.lm_head.weight")
  untied += ("auxiliary.sentence_encoder.embed_positions.weight",)
  rows += [(state | {name: state[name] + 1.0}, A, f"{name} and ") for name in untied]
  rows.append((state, 3, "is not divisible by 3 heads"))
  headless = {name: state[name] for name in state if not name.startswith("auxiliary.lm_head.")}
  rows.append((headless, A, "auxiliary.lm_head.bias is missing"))
  assert not failing(rows, lambda state, heads: official.from_fairseq(state, num_heads=heads))
