"""What official code cannot compute. Run: python -m pytest tests/pretrain/export/official/test_fit.py"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")

from safetensors.numpy import load_file  # noqa: E402

from pretrain.checkpoints.checkpoint import load_params  # noqa: E402
from pretrain.export import __main__, tensor_rows  # noqa: E402
from pretrain.export.official import config  # noqa: E402


def test_sizes_and_rates_are_read_under_their_names():
  layers = {"attention": {"query": {"kernel": np.zeros((3, 4, 2, 2))}}, "up": {"kernel": np.zeros((3, 4, 8))}}
  tables = {"token": {"embedding": np.zeros((9, 4))}, "position": {"embedding": np.zeros((6, 4))}}
  params = {"encoder": {"embeddings": tables, "trunk": {"layers": layers}}}
  sizes = {"vocab_size": 9, "max_length": 6, "hidden_size": 4, "num_layers": 3, "num_heads": 2, "mlp_size": 8}
  rates = {"dropout": 0.1, "attention_dropout": 0.2}
  expected = sizes | rates | {"num_segments": 0, "relative_position": "none"}
  port = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "layer_norm_eps": 1e-6}
  assert config.port_fields(port, params) == expected | {"layer_norm_eps": 1e-6}
  assert config.fairseq_fields(rates, params) == expected | {"layer_norm_eps": 1e-5}


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"generator.share_embeddings": "none"}, "token table, but this model's generator has its own"),
    ({"generator.frozen": True}, "token table, but this model's generator has its own"),
    ({"generator.separate_layers": (1, 1)}, "its generator is one network, and this model has 2"),
    ({"generator.hidden_size": 16}, "the encoder's width and heads, but this model's generator has others"),
    ({"generator.num_heads": 2}, "the encoder's width and heads, but this model's generator has others"),
    ({"generator.mlp_size": 24}, "the encoder's width and heads, but this model's generator has others"),
    ({"objectives.rtd.head": "dense"}, "its RTD head is one linear layer"),
  ],
)
def test_a_network_that_fairseq_has_otherwise_is_refused_in_one_line(
  fields, message, make_workdir, tmp_path, capsys, in_this_process, export
):
  assert export(make_workdir("official", fields), tmp_path / "out", "--to=fairseq") == 2
  error = capsys.readouterr().err.strip()
  assert "--to=fairseq cannot represent this model exactly: " in error and message in error
  assert all(line.startswith("  ") for line in error.splitlines()[1:]) and not list(tmp_path.iterdir())


def test_a_generator_with_a_token_table_of_its_own_lies_beside_the_port(
  make_workdir, tmp_path, capsys, in_this_process, export
):
  workdir, output = make_workdir("official", {"generator.share_embeddings": "none"}), tmp_path / "out"
  assert export(workdir, output, "--to=cocolm") == 0, capsys.readouterr().err
  assert "generator/embeddings/token/embedding" in load_file(output / "extra.safetensors")
  assert __main__.main(["import", f"--from={output}", f"--output={tmp_path / 'back'}"]) == 0
  ours, theirs = (tensor_rows.flatten(load_params(place)[0]) for place in (workdir, tmp_path / "back"))
  assert ours.keys() == theirs.keys()
  assert not [path for path in ours if not np.array_equal(ours[path], theirs[path])]
