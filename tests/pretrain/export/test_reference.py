"""What the self-check compares with. Run: python -m pytest tests/pretrain/export/test_reference.py"""

import jax
import numpy as np
import pytest

from pretrain.export.check import reference
from pretrain.models import encoder, heads
from tests.pretrain.export.stock_cases import CASES, LENGTH, random_params


def _case(name: str, *sizes: int) -> reference.Case:
  """A batch of rows of these numbers of tokens."""
  ids = np.random.default_rng(len(sizes)).integers(7, 40, (len(sizes), max(sizes)))
  mask = (np.arange(max(sizes)) < np.array(sizes)[:, None]).astype(np.int64)
  return reference.Case(name, (), np.where(mask, ids, 0), mask)


@pytest.mark.parametrize("head", ["classification", "question_answering"])
def test_cases_computed_together_are_as_each_alone(tmp_path, head):
  config, path = CASES["bert"][1], tmp_path / "reference.npz"
  params = random_params(config, head)
  # One text has fewer tokens than there are classes.
  cases = [_case("single", 2), _case("padded", 5, 9, 3), _case("longest", LENGTH)]
  reference.write_reference(path, params, config, cases, pad_id=0, head=head)
  own = params["heads"][head]
  with np.load(path) as saved:
    for number, case in enumerate(cases):
      ids, mask = saved[f"{number}/ids"], saved[f"{number}/mask"] > 0
      np.testing.assert_array_equal(ids, case.ids)
      hidden = encoder.encode(params["encoder"], config, ids, mask, pad_id=0)[1].last
      np.testing.assert_allclose(saved[f"{number}/hidden"][mask], hidden[mask], atol=1e-5)
      if head == "classification":
        logits, found = heads.apply_classification_head(own, hidden[:, 0]), saved[f"{number}/logits"]
      else:
        logits, found = (hidden @ own["kernel"] + own["bias"])[mask], saved[f"{number}/logits"][mask]
      np.testing.assert_allclose(found, jax.device_get(logits), atol=1e-5)
