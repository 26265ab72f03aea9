"""Pairs in a plane: whose partner is the nearest is known."""

import types

import numpy as np

from lab.analysis import plane, space


def test_a_partner_is_the_nearest_of_the_other_side_both_ways():
  first, second = np.asarray([[0.0], [10.0]]), np.asarray([[1.0], [4.0]])
  # 4 is the nearest of 10, but 10 is not the nearest of 4: three of four.
  assert plane.nearest(first, second) == plane.nearest(second, first) == 0.75


def test_pairs_of_every_checkpoint_are_looked_for_in_space_and_in_the_plane(monkeypatch):
  number = plane.MARKED + 2
  first = np.eye(number)
  planted = {"with": first, "without": np.roll(first, 1, axis=0)}
  texts = [str(at) for at in range(number)]
  monkeypatch.setattr(space, "similar_pairs", lambda _: (texts, texts))
  monkeypatch.setattr(space, "sentence_embedder", lambda name, model, _: model)
  monkeypatch.setattr(space, "sentence_vectors", lambda name, _: (first, planted[name]))
  line = np.stack([np.arange(number), np.zeros(number)], axis=1)
  monkeypatch.setattr(plane, "planes", lambda _: {"t-SNE": np.concatenate([line, line + 0.1])})
  request = types.SimpleNamespace(pooling="cls", encoders=lambda: ((name, name, None) for name in planted))
  outcome = plane.measure(request)
  names = ("checkpoint", "mean cosine", "nearest in space", "nearest in the plane")
  assert [tuple(row[name] for name in names) for row in outcome.rows] == [
    ("with", 1.0, 1.0, 1.0),
    ("without", 0.0, 0.0, 1.0),
  ]
  sides = {curve.name: curve.x for curve in outcome.plots[0].curves if curve.is_cloud}
  np.testing.assert_allclose(sides["second"] - sides["first"], 0.1)
