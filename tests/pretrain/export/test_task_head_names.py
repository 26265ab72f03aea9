"""Names of the heads of fine-tuning. Run: python -m pytest tests/pretrain/export/test_task_head_names.py"""

import jax
import numpy as np
import pytest

from pretrain.export.official import names as official_names
from tests.pretrain.export.official.test_names import A, D, fairseq_state, hugging_face_state

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
