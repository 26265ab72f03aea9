"""`python -m data.vocabulary`: what it trains, imports and refuses."""

import json

import pytest

from data import vocabulary
from data.vocabulary import __main__ as vocabulary_command
from data.vocabulary import train as vocabulary_train
from tests.data.conftest import make_documents, write_text


def test_the_command_trains_and_imports(tmp_path, corpus, capsys):
  arguments = ["train", f"--source={corpus}/*.txt", "--size=150", "--workers=1", "--seed=1"]
  arguments += ["--heldout_fraction=0.5", "--cased"]
  assert vocabulary_command.main([*arguments, f"--output={tmp_path}/v"]) == 0
  made = vocabulary.load(tmp_path / "v")
  assert (made.size, made.cased) == (150, True)
  for other in ("--seed=2", "--heldout_fraction=0.1", "--limit=40", "--kind=wordpiece"):
    assert vocabulary_command.main([*arguments, other, f"--output={tmp_path}/{other}"]) == 0
    assert vocabulary.load(tmp_path / other).digest != made.digest, other
  model = f"--sp_model={tmp_path}/v/sp.model"
  assert vocabulary_command.main(["import", model, f"--output={tmp_path}/w"]) == 0
  assert vocabulary.load(tmp_path / "w").digest == made.digest
  official = ["import", model, "--pretokenization=official", f"--output={tmp_path}/official"]
  said = capsys.readouterr().err
  assert f"/w: sentencepiece, 150 pieces, sha256 {made.digest[:12]}" in said and "be exported" not in said
  assert vocabulary_command.main(official) == 0
  assert "cannot be exported" in capsys.readouterr().err
  assert vocabulary_command.main(["import", model, f"--output={tmp_path}/w"]) == 2  # it exists
  (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00\x00")
  assert vocabulary_command.main(["train", f"--source={tmp_path}/a.txt", f"--output={tmp_path}/w"]) == 2
  assert "UTF-16" not in capsys.readouterr().err  # refused before anything is read


def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path, vocabulary_directory, capsys):
  (tmp_path / "lines").write_bytes(b"a 1\n" * ((1 << 20) + 1))
  with (tmp_path / "large").open("wb") as file:
    file.truncate((1 << 28) + 1)
  two = ["train", f"--source={tmp_path}/a.txt", f"--source={tmp_path}/b.jsonl"]
  files = [f"--sp_model={vocabulary_directory}/sp.model", f"--dict={tmp_path}/lines"]
  cases = [
    (["import", f"--vocab_txt={tmp_path}/lines"], 3, "lines: 1,048,577 lines"),
    (["import", *files], 3, "lines: 1,048,577 lines"),
    (["import", f"--vocab_txt={tmp_path}/large"], 3, "large: 268,435,457 bytes"),
    (["import", f"--sp_model={tmp_path}/large"], 3, "large: 268,435,457 bytes"),
    ([*two, "--rate=1"], 2, "--rate"),
    ([*two, "--rate=1", "--rate=0"], 2, f"--rate=0 of --source={tmp_path}/b.jsonl"),
    ([*two, "--rate=-1", "--rate=2"], 2, f"--rate=-1 of --source={tmp_path}/a.txt"),
    ([*two, "--rate=nan", "--rate=2"], 2, "--rate=nan"),
    ([*two, "--rate=1", "--rate=inf"], 2, "--rate=inf"),
    ([*two, "--text_field=a", "--text_field=b", "--text_field=c"], 2, "--text_field"),
    ([*two, "--heldout_fraction=1"], 2, "--heldout_fraction=1.0"),
    ([*two, "--heldout_fraction=-1"], 2, "--heldout_fraction=-1.0"),
    ([*two, "--seed=-1"], 2, "--seed"),
    ([*two, f"--seed={2**63}"], 2, "--seed"),
    *(([*two, f"--{name}=-1"], 2, f"--{name}") for name in ("size", "workers", "limit")),
    ([*two, "--clean=exakt"], 2, "exakt"),
    ([*two, "--sise=3"], 2, "'--size'"),
  ]
  failures = []
  for flags, code, word in cases:
    found = vocabulary_command.main([*flags, f"--output={tmp_path}/v"])
    said = capsys.readouterr().err
    if found != code or word not in said or (tmp_path / "v").exists():
      failures.append(f"{flags}: {found} {said}")
  assert not failures, "\n".join(failures)


def test_a_vocabulary_of_two_sources_reads_the_field_of_each_and_keeps_their_rates(tmp_path, monkeypatch):
  monkeypatch.setattr(vocabulary_train, "MAX_TRAINING_CHARACTERS", 40_000)
  write_text(tmp_path / "a.txt", make_documents(500, seed=1))
  rows = [json.dumps({"body": f"{'jazz quiz ' * 20} {number}"}) for number in range(500)]
  (tmp_path / "b.jsonl").write_text("\n".join(rows))
  shares = []

  def train(text, *_, **__):
    lines = list(text)
    shares.append(sum(len(line) for line in lines if "jazz" in line) / sum(map(len, lines)))
    raise KeyboardInterrupt

  monkeypatch.setattr(vocabulary_train, "train", train)
  flags = ["train", "--workers=1", f"--source={tmp_path}/a.txt", f"--source={tmp_path}/b.jsonl"]
  flags += ["--text_field=text", "--text_field=body", f"--output={tmp_path}/v"]
  for rates in ([], ["--rate=3", "--rate=1"]):
    assert vocabulary_command.main([*flags, *rates]) == 130
  assert shares == [pytest.approx(0.5, abs=0.05), pytest.approx(0.25, abs=0.05)]
