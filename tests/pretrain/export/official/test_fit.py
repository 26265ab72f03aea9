"""What official code cannot compute. Run: python -m pytest tests/pretrain/export/official/test_fit.py"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")

from safetensors.numpy import load_file  # noqa: E402

from pretrain.checkpoint import load_params  # noqa: E402
from pretrain.export import __main__, folders  # noqa: E402


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"generator.share_embeddings": "none"}, "token table, and this model's has one of its own"),
    ({"generator.frozen": True}, "token table, and this model's has one of its own"),
    ({"generator.separate_layers": (1, 1)}, "its generator is one network, and this model has 2"),
    ({"generator.hidden_size": 16}, "the encoder's width and heads, and this model's has others"),
    ({"generator.num_heads": 2}, "the encoder's width and heads, and this model's has others"),
    ({"generator.mlp_size": 24}, "the encoder's width and heads, and this model's has others"),
    ({"objectives.rtd.head": "dense"}, "its RTD head is one linear layer"),
  ],
)
def test_a_network_that_fairseq_has_otherwise_is_refused_in_one_line(
  fields, message, make_workdir, tmp_path, capsys, in_this_process, export
):
  assert export(make_workdir("official", fields), tmp_path / "out", "--to=fairseq") == 2
  error = capsys.readouterr().err.strip()
  assert "--to=fairseq cannot hold this model exactly: " in error and message in error
  assert "\n" not in error and not list(tmp_path.iterdir())


def test_a_generator_with_a_token_table_of_its_own_lies_beside_the_port(
  make_workdir, tmp_path, capsys, in_this_process, export
):
  workdir, output = make_workdir("official", {"generator.share_embeddings": "none"}), tmp_path / "out"
  assert export(workdir, output, "--to=cocolm") == 0, capsys.readouterr().err
  assert "generator/embeddings/token/embedding" in load_file(output / "extra.safetensors")
  assert __main__.main(["import", f"--from={output}", f"--output={tmp_path / 'back'}"]) == 0
  ours, theirs = (folders.flatten(load_params(place)[0]) for place in (workdir, tmp_path / "back"))
  assert ours.keys() == theirs.keys()
  assert not [path for path in ours if not np.array_equal(ours[path], theirs[path])]
