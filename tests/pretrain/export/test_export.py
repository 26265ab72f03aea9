"""`python -m pretrain.export` from a saved checkpoint to a checked folder, and back."""

import hashlib
import json
import os
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")

from safetensors.numpy import load_file, save_file  # noqa: E402

from data import vocabulary  # noqa: E402
from pretrain.checkpoints.checkpoint import load_params  # noqa: E402
from pretrain.export import export_checkpoint, self_check, tensor_rows  # noqa: E402
from pretrain.export.stock import names  # noqa: E402
from pretrain.models.layers import encoder_config  # noqa: E402
from tests.pretrain.export import torch_own  # noqa: E402
from tests.pretrain.export.refusals import failing_commands  # noqa: E402

ROUND = [  # kind, flags, layout, what lies in extra.safetensors at least
  ("t5", (), "mpnet", {"generator", "heads/rtd", "heads/clm", "heads/scl"}),
  ("wide_t5", (), "layoutlmv3", {"generator", "heads/rtd", "heads/clm", "heads/scl", "encoder/trunk"}),
  ("byte_level", (), "bert", set()),
  ("electra", (), "electra", {"generator"}),
  ("deberta", (), "deberta-v2", {"generator"}),
  ("modern_coco_lm", (), "modernbert", {"generator", "heads/rtd", "heads/scl"}),
  ("euro_electra", (), "eurobert", {"generator", "heads/clm", "heads/scl"}),
]


def same_params(first, second) -> bool:
  """Whether two checkpoints have the same names and bits."""
  ours, theirs = (tensor_rows.flatten(load_params(place)[0]) for place in (first, second))
  return ours.keys() == theirs.keys() and all(np.array_equal(ours[path], theirs[path]) for path in ours)


@pytest.mark.parametrize(("kind", "flags", "layout", "extra"), ROUND, ids=[row[2] for row in ROUND])
def test_a_checkpoint_becomes_a_checked_folder_that_comes_back_bit_equal(
  kind, flags, layout, extra, exported, bring, tmp_path
):
  workdir, output, said = exported(kind, *flags)
  assert f"layout {layout}: " in said
  assert float(re.search(r"hidden states ([\d.e-]+)", said).group(1)) <= 1e-5
  assert all(case in said for case in ("texts", "pairs", "longest"))
  assert ("beyond the window" in said) == (layout == "modernbert")
  kept = load_file(output / "extra.safetensors") if (output / "extra.safetensors").is_file() else {}
  parts = {"/".join(path.split("/")[: 1 if path.startswith("generator/") else 2]) for path in kept}
  assert parts == extra
  back = bring(output, tmp_path / "back")
  words = vocabulary.load(back / "vocabulary")
  assert words.digest == vocabulary.load(workdir / "vocabulary").digest
  assert same_params(workdir, back)


def test_a_model_without_a_class_leaves_under_our_names_from_which_pytorch_computes_it(
  exported, bring, tmp_path
):
  """With every switch that has no class: gated MLPs of post-norm layers, and T5's buckets with windows."""
  for kind in ("homeless", "t5"):
    workdir, output, said = exported(kind, "--to=torch")
    assert "layout torch: " in said and "tensors were read back, equal in every bit" in said
    assert same_params(workdir, bring(output, tmp_path / kind))
    config = encoder_config(json.loads((output / "config.json").read_text())["model"], dtype="float32")
    state = {path: torch.tensor(array) for path, array in load_file(output / "model.safetensors").items()}
    (case, *_) = self_check.make_cases(vocabulary.load(output / "vocabulary"), max_length=config.max_length)
    pad_id = vocabulary.load(output / "vocabulary").special_ids.pad
    (case,) = self_check.with_outputs([case], load_params(workdir)[0], config, pad_id=pad_id, head="")
    found = torch_own.hidden_states(state, config, torch.tensor(case.ids), torch.tensor(case.mask)).numpy()
    assert self_check.difference(found, case.hidden, case.mask > 0) < 1e-5


def test_a_transposed_kernel_and_a_lost_tensor_fail_the_self_check(
  exported, tmp_path, monkeypatch, export, capsys
):
  """Our tables are patched, because the self-check exists for faults in them."""
  wrong = tensor_rows.Layout(
    lambda a, heads: [a.reshape(heads, -1, a.shape[0])],
    lambda parts: parts[0].reshape(-1, parts[0].shape[-1]),
  )
  square, workdir = "trunk/layers/attention/output/kernel", exported("t5").workdir
  layers = [
    row._replace(layout=wrong) if row.paths == (square,) else row for row in names.TENSORS["mpnet"].layers
  ]
  with monkeypatch.context() as patch:
    patch.setitem(names.TENSORS, "mpnet", names.TENSORS["mpnet"]._replace(layers=tuple(layers)))
    assert export(workdir, tmp_path / "out") == 3
  assert "nothing was written. Please report it" in capsys.readouterr().err
  lost = names.TENSORS["mpnet"]._replace(layers=names.TENSORS["mpnet"].layers[:-1])
  monkeypatch.setitem(names.TENSORS, "mpnet", lost)
  assert export(workdir, tmp_path / "out") == 3
  assert re.search(
    r"PyTorch cannot use the mpnet export; .*missing_keys: .*LayerNorm", capsys.readouterr().err
  )
  monkeypatch.setattr(export_checkpoint, "flatten", lambda params: {"encoder/a": np.zeros(3, np.float32)})
  monkeypatch.setattr(
    export_checkpoint,
    "save_tensors",
    lambda path, state: save_file({"encoder/a": np.ones(3, np.float32)}, path),
  )
  assert export(workdir, tmp_path / "out", "--to=torch") == 3
  assert "other parameters than the checkpoint" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_every_file_has_its_digest_and_what_others_made_is_left_alone(exported, export, tmp_path):
  workdir, output, mine = exported("t5").workdir, tmp_path / "out", tmp_path / "mine"
  before = os.umask(0o027)
  try:
    assert export(workdir, output, "--license=apache-2.0", "--name=Tiny") == 0
  finally:
    os.umask(before)
  listed = dict(line.split("  ")[::-1] for line in (output / "sha256.txt").read_text().splitlines())
  paths = {path.name: path for path in output.iterdir()}
  assert {path.stat().st_mode & 0o777 for path in paths.values()} == {0o640}
  digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}
  assert listed == {name: digests[name] for name in digests if name != "sha256.txt"}
  assert listed.keys() >= {
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "README.md",
    "extra.safetensors",
  }
  card = paths["README.md"].read_text()
  assert card.startswith("---\nlicense: apache-2.0\nlibrary_name: transformers\n") and "# Tiny" in card
  # A failed export leaves the older one; one that is well replaces it.
  assert export(workdir, output, "--tolerance=1e-12") == 3
  assert hashlib.sha256(paths["model.safetensors"].read_bytes()).hexdigest() == digests["model.safetensors"]
  assert export(workdir, output, "--to=torch") == 0
  assert not paths["tokenizer.json"].exists() and (output / "vocabulary").is_dir()
  mine.mkdir()
  (mine / "thesis.txt").write_text("years of work")
  assert export(workdir, mine) == 2 and [path.name for path in mine.iterdir()] == ["thesis.txt"]
  assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


REFUSED = [  # kind, flags, exit code, a word
  ("t5", ["--to=bert"], 2, "relative_position is 't5', and the class has 'none'"),
  ("homeless", [], 2, "  --to=torch"),
  ("modern_coco_lm", ["--to=bert"], 2, "model.norm_placement is 'pre'"),
  ("t5", ["--to=fairseq"], 2, "invalid choice: 'fairseq'"),
  ("electra", ["--generator", "--to=torch"], 2, "  --to=auto"),
  ("byte_level", ["--generator"], 2, "has no generator"),
  ("t5", ["--tolerance=0"], 2, "--tolerance=1e-5"),
  ("t5", ["--tolerance=inf"], 2, "--tolerance=1e-5"),
  ("t5", ["--tolerance=1e-9"], 3, "  --tolerance="),
  ("t5", ["--step=3"], 3, "no checkpoint of step 3"),
  ("t5", ["--vocabulary=nowhere"], 3, "nowhere"),
]


def test_what_cannot_be_done_is_refused(exported, make_workdir, tmp_path, capsys, export):
  def run(kind, flags):
    made = exported(kind, *(["--to=torch"] if kind == "homeless" else []))
    return export(made.workdir, tmp_path / "out", *flags)

  assert not failing_commands(REFUSED, run, capsys)
  bad = {"rtd": {"kernel": np.full((32, 1), np.nan, np.float32), "bias": np.zeros(1, np.float32)}}
  assert export(make_workdir("t5", heads=bad), tmp_path / "out") == 3
  assert "heads/rtd/kernel contains NaN or infinity" in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def test_differences_are_the_largest_where_they_count():
  """A batch may have as many classes as there are tokens: its logits are no matter of the mask."""
  expected, is_token = np.zeros((2, 3), np.float32), np.asarray([[1, 1, 0], [1, 1, 1]]) > 0
  found = expected.copy()
  found[0, 2] = 0.5
  assert self_check.difference(found, expected) == 0.5
  assert self_check.difference(found, expected, is_token) == 0.0  # it is padding
  assert self_check.difference(found, expected - 4, relative=True) == 1.125  # 4.5 of 4
  assert self_check.difference(found, expected, relative=True) == 0.5
  assert self_check.difference(np.float32([[0, 2]]), np.float32([[np.nan, 2]])) == float("inf")
  with pytest.raises(ValueError, match="shapes"):
    self_check.difference(np.zeros((1, 2)), np.zeros((2, 1)))
