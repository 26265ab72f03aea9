"""`python -m pretrain.export` from a saved checkpoint to a checked folder."""

import hashlib
import json
import pathlib
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")

from safetensors.numpy import load_file  # noqa: E402

from data import vocabulary  # noqa: E402
from data.errors import DataError  # noqa: E402
from pretrain.checkpoints.checkpoint import load_params  # noqa: E402
from pretrain.embed import __main__ as embed  # noqa: E402
from pretrain.export import __main__, folders, tensor_rows  # noqa: E402
from pretrain.export.check import reference as self_check  # noqa: E402
from pretrain.export.official import names as official_names  # noqa: E402
from pretrain.export.stock import tables as stock_tables  # noqa: E402
from pretrain.export.tensor_rows import Layout  # noqa: E402


def export(workdir, output, *flags: str) -> int:
  return __main__.main([f"--checkpoint={workdir}", f"--output={output}", *flags])


def _leaves(params: dict) -> dict[str, np.ndarray]:
  return tensor_rows.flatten(params)


@pytest.mark.parametrize(
  ("kind", "to", "layout", "extra"),
  [
    ("t5", "auto", "mpnet", {"generator", "heads/rtd", "heads/clm", "heads/scl"}),
    ("wide_t5", "auto", "layoutlmv3", {"generator", "heads/rtd", "heads/clm", "heads/scl"}),
    ("mae", "auto", "mpnet", {"heads/mae"}),
    ("wordpiece", "auto", "bert", set()),
    ("byte_level", "auto", "bert", set()),
    ("electra", "auto", "electra", {"generator"}),
    ("modern_mlm", "auto", "modernbert", set()),
    ("modern_mae", "auto", "modernbert", {"heads/mae"}),
    ("modern_coco_lm", "auto", "modernbert", {"generator", "heads/rtd", "heads/scl"}),
    ("modern_electra", "auto", "modernbert", {"generator"}),
    ("ultra_electra", "auto", "ultrabert", {"generator", "heads/clm", "heads/scl"}),
    ("euro_electra", "auto", "eurobert", {"generator", "heads/clm", "heads/scl"}),
    ("official", "cocolm", "cocolm", {"generator"}),
    ("official", "amos", "amos", {"generator"}),
    ("official", "fairseq", "fairseq", set()),
    ("t5", "torch", "torch", set()),
    ("wide_t5", "torch", "torch", set()),
    ("wordpiece", "torch", "torch", set()),
    ("modern_mlm", "torch", "torch", set()),
    ("ultra_electra", "torch", "torch", set()),
    ("homeless", "torch", "torch", set()),
  ],
)
def test_a_checkpoint_becomes_a_checked_folder_that_comes_back_bit_equal(
  kind, to, layout, extra, make_workdir, tmp_path, capsys, in_this_process, export
):
  workdir, output = make_workdir(kind), tmp_path / "out"
  assert export(workdir, output, f"--to={to}") == 0, capsys.readouterr().err
  printed = capsys.readouterr().err
  assert f"layout {layout}: " in printed
  assert float(re.search(r"hidden states ([\d.e-]+)", printed).group(1)) <= 1e-5
  assert all(case in printed for case in ("texts", "pairs", "longest"))
  kept = load_file(output / "extra.safetensors") if (output / "extra.safetensors").is_file() else {}
  parts = {"/".join(path.split("/")[: 2 if path.startswith("heads/") else 1]) for path in kept}
  assert parts >= extra
  back = tmp_path / "back"
  assert __main__.main(["import", f"--from={output}", f"--output={back}"]) == 0, capsys.readouterr().err
  words = vocabulary.load(back / "vocabulary")
  assert words.digest == vocabulary.load(workdir / "vocabulary").digest
  ours, theirs = _leaves(load_params(workdir)[0]), _leaves(load_params(back)[0])
  assert ours.keys() == theirs.keys()
  assert not [path for path in ours if not np.array_equal(ours[path], theirs[path])]


@pytest.mark.parametrize(
  ("kind", "to"),
  [
    ("t5", "mpnet"),
    pytest.param("modern_electra", "modernbert", marks=pytest.mark.nightly),
    pytest.param("official", "fairseq", marks=pytest.mark.nightly),
  ],
)
def test_the_self_check_runs_in_a_fresh_process(kind, to, make_workdir, tmp_path, capsys, export):
  assert export(make_workdir(kind), tmp_path / "out", f"--to={to}") == 0, capsys.readouterr().err
  assert "self-check: max |difference| of hidden states" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["wide_t5", "modern_mlm"])
def test_the_files_of_sentence_transformers_lead_to_the_tokenizer_and_the_mean(
  kind, make_workdir, tmp_path, capsys, in_this_process, export
):
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  output, workdir = tmp_path / "out", make_workdir(kind)
  assert export(workdir, output, "--sentence_transformers") == 0, capsys.readouterr().err
  # What the package calls; by its model type this class would ask for an image processor.
  processor = transformers.AutoProcessor.from_pretrained(output)
  tokenizer = transformers.AutoTokenizer.from_pretrained(output)
  assert processor("a word")["input_ids"] == tokenizer("a word")["input_ids"]
  modules = json.loads((output / "modules.json").read_text())
  assert [(module["path"], module["type"].rpartition(".")[2]) for module in modules] == [
    ("", "Transformer"),
    ("1_Pooling", "Pooling"),
  ]
  pooling = json.loads((output / "1_Pooling" / "config.json").read_text())
  assert pooling["word_embedding_dimension"] == 32 and pooling["pooling_mode_mean_tokens"] is True
  assert json.loads((output / "sentence_bert_config.json").read_text())["max_seq_length"] == 128
  # And what it computes is what `pretrain.embed` gives.
  texts = ["a word", "some more words than the first, " * 9, "x"]
  (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
  inputs = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
  with torch.no_grad():
    hidden = transformers.AutoModel.from_pretrained(output).eval()(**inputs).last_hidden_state
  mask = inputs["attention_mask"][..., None]
  for name, expected in {"mean": (hidden * mask).sum(1) / mask.sum(1), "cls": hidden[:, 0]}.items():
    flags = [f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / name}.npy", f"--pooling={name}"]
    assert embed.main([f"--checkpoint={workdir}", *flags]) == 0, capsys.readouterr().err
    np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), expected.numpy(), atol=1e-5, rtol=0)


def test_a_spelling_of_config_json_that_says_something_else_is_found(
  make_workdir, tmp_path, monkeypatch, in_this_process, export
):
  save = folders.save_json
  monkeypatch.setattr(
    folders, "save_json", lambda path, fields: save(path, fields | {"local_rope_theta": 160_000.0})
  )
  with pytest.raises(ValueError, match=r"without layer_types, rope_parameters has another rope_parameters"):
    export(make_workdir("modern_mlm"), tmp_path / "out")
  assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_rows_of_8192_tokens_agree(make_workdir, tmp_path, capsys, in_this_process, export):
  fields = {"model.max_length": 8_192, "model.num_heads": 2, "model.window": 128}
  assert export(make_workdir("modern_mlm", fields), tmp_path / "out") == 0, capsys.readouterr().err
  assert "longest" in capsys.readouterr().err


def _transposed(rows):
  """The row of a square kernel, read and written as if it were not transposed."""
  wrong = Layout(
    lambda a, heads: [a.reshape(heads, -1, a.shape[0])],
    lambda parts: parts[0].reshape(-1, parts[0].shape[-1]),
  )
  return tuple(
    row._replace(layout=wrong) if row.paths[0].endswith("attention/output/kernel") else row for row in rows
  )


@pytest.mark.parametrize(
  ("kind", "to"),
  [("t5", "mpnet"), ("wide_t5", "layoutlmv3"), ("wordpiece", "bert"), ("wordpiece", "electra")]
  + [("official", "cocolm"), ("official", "amos"), ("official", "fairseq"), ("t5", "torch")],
)
def test_a_transposed_kernel_in_the_tables_fails_the_self_check(
  kind, to, make_workdir, tmp_path, capsys, monkeypatch, in_this_process, export
):
  if to in folders.STOCK:
    monkeypatch.setitem(stock_tables.LAYERS, to, _transposed(stock_tables.LAYERS[to]))
  elif to == "torch":
    flatten = tensor_rows.flatten
    monkeypatch.setattr(
      folders,
      "flatten",
      lambda tree: {
        path: np.ascontiguousarray(leaf.reshape(len(leaf), 32, 32).swapaxes(1, 2).reshape(leaf.shape))
        if path.endswith("encoder/trunk/layers/attention/output/kernel")
        else leaf
        for path, leaf in flatten(tree).items()
      },
    )
  else:
    table = "ENCODER_PARTS" if to == "fairseq" else "PORT_PARTS"
    parts = [part._replace(rows=_transposed(part.rows)) for part in getattr(official_names, table)]
    monkeypatch.setattr(official_names, table, tuple(parts))
  output = tmp_path / "out"
  assert export(make_workdir(kind), output, f"--to={to}") == 3
  assert "self-check: the" in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def test_every_file_has_its_digest_and_the_card_says_what_was_done(
  make_workdir, tmp_path, capsys, in_this_process, export
):
  workdir, output = make_workdir("t5"), tmp_path / "out"
  lines = [
    {"step": 4, "train/loss": 3.0, "perf/steps_per_second": 0.002},
    {"step": 7, "eval/generator_loss": 5.25},
    {"step": 9, "eval/generator_loss": 1.0},
  ]
  (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  flags = ["--sentence_transformers", "--license=apache-2.0", "--language=en", "--name=Tiny"]
  assert export(workdir, output, *flags) == 0
  capsys.readouterr()
  listed = dict(line.split("  ")[::-1] for line in (output / "sha256.txt").read_text().splitlines())
  there = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
  assert set(listed) == there - {"sha256.txt"}
  assert all(
    hashlib.sha256((output / name).read_bytes()).hexdigest() == digest for name, digest in listed.items()
  )
  expected = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
  assert there >= expected | {"extra.safetensors", "modules.json", "1_Pooling/config.json"}
  card = (output / "README.md").read_text()
  assert card.startswith("---\nlanguage: en\nlicense: apache-2.0\n")
  for phrase in (
    "# Tiny",
    "AutoModel.from_pretrained",
    "| generator_loss | 5.2500 |",
    "COCO-LM: Correcting",
    "split_special_tokens",
    "0.56 (from logged speeds)",
    "## Bias and limits",
    "Layout `mpnet`",
  ):
    assert phrase in card, phrase
  assert "$" not in card


def test_an_older_export_is_replaced_and_other_folders_are_left_alone(
  make_workdir, tmp_path, capsys, in_this_process, export
):
  workdir, output = make_workdir("t5"), tmp_path / "out"
  assert export(workdir, output, "--to=torch") == 0
  assert export(workdir, output) == 0
  assert not (output / "vocabulary").exists()
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine" / "thesis.txt").write_text("years of work")
  assert export(workdir, tmp_path / "mine") == 2
  assert "holds files that no export made" in capsys.readouterr().err
  assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_a_failed_export_leaves_the_older_one(
  make_workdir, tmp_path, capsys, monkeypatch, in_this_process, export
):
  workdir, output = make_workdir("t5"), tmp_path / "out"
  assert export(workdir, output) == 0
  before = (output / "sha256.txt").read_text()

  def fail(*args, **kwargs):
    raise DataError("self-check: planted")

  monkeypatch.setattr(self_check, "check", fail)
  assert export(workdir, output, "--to=torch") == 3
  assert (output / "sha256.txt").read_text() == before
  assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
  ("kind", "flags", "code", "message"),
  [
    ("t5", ["--to=bert"], 2, "relative positions are t5 32/128, but the class has none"),
    ("homeless", [], 2, "the nearest is bert, but model.mlp is 'gated', and the class has 'plain'"),
    ("modern_mlm", ["--to=bert"], 2, "model.norm_placement is 'pre', and the class has 'post'"),
    ("modern_mlm", ["--to=ultrabert"], 2, "model.norm is 'layernorm', and the class has 'rmsnorm'"),
    ("ultra_electra", ["--to=eurobert"], 2, "some layers have a window of 16 tokens, and the class has none"),
    ("modern_mlm", ["--to=cocolm"], 2, "model.norm_placement is 'pre'"),
    ("t5", ["--to=modernbert"], 2, "model.norm_placement is 'post', and the class has 'pre'"),
    ("t5", ["--to=cocolm"], 2, "its own relative buckets"),
    ("wordpiece", ["--to=fairseq"], 2, "needs sp.model and dict.txt"),
    ("t5", ["--to=torch", "--onnx"], 2, "need a transformers class"),
    ("t5", ["--tolerance=0"], 2, "is not above 0"),
    ("t5", ["--tolerance=1e-9"], 3, "allow the difference"),
    ("t5", ["--step=3"], 3, "no checkpoint of step 3"),
    ("t5", ["--vocabulary=nowhere"], 3, "nowhere holds no vocabulary"),
    ("t5", ["--to=gpt2"], 2, "invalid choice: 'gpt2'"),
  ],
)
def test_what_cannot_be_done_is_said_in_one_line(
  kind, flags, code, message, make_workdir, tmp_path, capsys, in_this_process, export
):
  assert export(make_workdir(kind), tmp_path / "out", *flags) == code
  error, *ways = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("layout ")]
  assert message in error and all(way.startswith("  ") for way in ways)
  assert not list(tmp_path.iterdir())


def test_values_that_are_not_finite_are_named(make_workdir, tmp_path, capsys, export):
  bad = {"rtd": {"kernel": np.full((32, 1), np.nan, np.float32), "bias": np.zeros(1, np.float32)}}
  workdir = make_workdir("t5", heads=bad)
  assert export(workdir, tmp_path / "out") == 3
  assert "heads/rtd/kernel contains NaN or infinity" in capsys.readouterr().err


def test_a_missing_tensor_in_a_folder_is_not_drawn_at_random(
  make_workdir, tmp_path, monkeypatch, in_this_process, export
):
  save = folders.save_tensors

  def lose_one(path: pathlib.Path, state):
    save(
      path, {name: array for name, array in state.items() if not name.endswith("layer.0.output.dense.bias")}
    )

  monkeypatch.setattr(folders, "save_tensors", lose_one)
  with pytest.raises(ValueError, match="missing_keys"):
    export(make_workdir("t5"), tmp_path / "out")
  assert not list(tmp_path.iterdir())
