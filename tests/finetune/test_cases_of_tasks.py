"""Files of people who fine-tune and embed: names of classes, columns, copies of passages, judgements."""

import argparse
import collections
import json
import types

import numpy as np
import pyarrow
import pytest
from ml_collections import ConfigDict
from pyarrow import ipc, parquet

from configs import arguments, finetune_embedding
from data import output_files, rows, vocabulary
from data.errors import DataError
from finetune import evaluate as finetune_evaluate
from finetune.embedding import evaluate, load, mining, retrieval
from finetune.own import load as own_columns
from finetune.own import target_values
from finetune.own.schema import TaskSchema
from pretrain.embed.schema import EmbeddingSchema
from pretrain.embed.vectors import Embedder
from pretrain.export import embedding_files
from pretrain.logs.intervals import LAST, Intervals
from pretrain.logs.metrics import Throughput
from pretrain.plan import dry_run
from tests.finetune.embedding import small_beir

CLASS = {"_type": "ClassLabel", "names": ["entailment", "not_entailment"]}
FEATURES = {
  "label": CLASS,
  "topics": {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": ["sun", "rain", "snow"]}},
  "tags": [{"_type": "ClassLabel", "names": ["O", "B-X"]}],
  "same": {"_type": "ClassLabel", "names": ["0", "1"]},
}
VALUES = {
  "sentence1": ["a b", "c d", "e f"],
  "sentence2": ["a", "c", "e"],
  "label": [1, 0, -1],
  "topics": [[0, 2], [], [1]],
  "tags": [[0, 1], [0, 0], [1, 0]],
  "same": [1, 0, 1],
}


def named_classes(path):
  """Writes rows whose schema names their classes, as the library `datasets` does."""
  metadata = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
  table = pyarrow.table(VALUES).replace_schema_metadata(metadata)
  if path.suffix == ".parquet":
    parquet.write_table(table, path)
  else:
    with ipc.new_stream(path, table.schema) as stream:
      stream.write_table(table)
  return path


def test_classes_have_the_names_of_the_file_and_outputs_keep_their_numbers(tmp_path):
  for ending in ("parquet", "arrow"):
    path = str(named_classes(tmp_path / f"a.{ending}"))
    read = list(rows.read(path))
    assert [target_values.label_of(row, "label") for row in read[:2]] == ["not_entailment", "entailment"]
    with pytest.raises(DataError, match="no label"):
      target_values.label_of(read[2], "label")
    found = [own_columns.Columns(("sentence1",), name, ()) for name in ("label", "same", "topics")]
    assert [own_columns.guess_kind(read, of)[0] for of in found] == [*["classification"] * 2, "multilabel"]
    assert (
      "names" in own_columns.guess_kind(read, found[0])[1] and target_values.label_of(read[0], "same") == "1"
    )
    several = TaskSchema("multilabel", ("sentence1",), "topics", (), "cls", 8, separator=",")
    assert [target_values.labels_of(row, several) for row in read] == [["sun", "snow"], [], ["rain"]]
    assert [str(tag) for tag in read[0].fields["tags"]] == ["O", "B-X"]
    assert target_values.number_of(read[0], "label") == 1
    lines = b"".join(output_files.json_line(row.fields) for row in read).splitlines()
    assert [json.loads(line)["label"] for line in lines] == VALUES["label"]
    survey = output_files.survey(path)
    assert survey.columns["label"] == "int64"
    schema = output_files.arrow_schema(path, survey.columns, {})
    (tmp_path / "o").unlink(missing_ok=True)
    with output_files.opened(
      tmp_path / "o", lambda file, schema=schema: output_files.Parquet(file, schema)
    ) as write:
      write([row.fields for row in read])
    assert parquet.read_table(tmp_path / "o").to_pydict() == VALUES


def test_a_class_with_a_name_is_no_score_unless_it_is_named(tmp_path):
  path = str(named_classes(tmp_path / "rte.parquet"))
  names = ["sentence1", "sentence2", "label"]
  chosen = load.find(path, names, text="", text_pair="")
  with pytest.raises(
    DataError, match=r"0 is 'entailment', 1 is 'not_entailment'.*\n  --config.data.label=label"
  ):
    load.refuse_classes(path, chosen, label="")
  load.refuse_classes(path, chosen, label="label")
  asked = argparse.Namespace(text="sentence1", text_pair="sentence2", label="")
  with pytest.raises(DataError, match=r"\n  --label=label"):
    evaluate.find_columns(path, asked)
  asked.label = "label"
  assert evaluate.find_columns(path, asked).number(next(rows.read(path))) == 1.0
  asked.label = "same"
  assert evaluate.find_columns(path, asked).label == "same"


def test_columns_of_text_that_are_not_known_are_refused_instead_of_training_single_texts(
  small_encoder_run, tmp_path
):
  words, path = vocabulary.load(small_encoder_run / "vocabulary"), tmp_path / "train.jsonl"

  def kind_of(fields, **own):
    made = [fields | {next(iter(fields)): f"the cat {at}"} for at in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    config = finetune_embedding.get_config()
    config.data.update({"train_file": str(path), "text": own.pop("text", "")})
    config.embedding.update(own)
    return load.load(config, words, EmbeddingSchema(unit=True), positions=32).kind

  for fields, unread in (
    ({"query": "", "response": "c d", "rejected_response": ["e f"]}, "response, rejected_response"),
    ({"question": "", "response": "c d", "source": "x"}, "response, source"),
  ):
    with pytest.raises(DataError) as caught:
      kind_of(fields)
    assert f"not {unread}; " in str(caught.value) and "--config.data.text_pair=response" in str(caught.value)
    assert kind_of(fields, objective="simcse") == kind_of(fields, text=next(iter(fields))) == "simcse"
  assert kind_of({"text": "", "id": "7", "label": "x", "length": "3", "n": 4}) == "simcse"


def passages_of(texts, titles=None):
  made = mining.Passages()
  for number, text in enumerate(texts, 1):
    title = titles[number - 1] if titles else ""
    made.add(rows.Row({}, number, "c"), f"{title} {text}" if titles else text, text if titles else "")
  return made


def test_a_positive_is_known_in_another_spelling_and_below_a_title_and_copies_are_one_passage():
  found = mining.Pairs.__new__(mining.Pairs)
  found.query, found.positive, found._positives = "query", "positive", collections.defaultdict(set)
  for query, positive in (
    ("Who  sat?", "The cat\tsat on a mat."),
    ("who sat?", "ﬁne"),
    ("other", "A dog ran."),
  ):
    found.add(rows.Row({"query": query, "positive": positive}, 1, "p"))
  copies = passages_of(
    ["the cat sat on a mat. ", "a dog ran.", "A  dog ran.", "THE CAT SAT ON A MAT.", "fine", " "]
  )
  assert copies.texts == ["the cat sat on a mat. ", "a dog ran.", "fine"] and copies.fresh == {1, 2, 5}
  assert found.known("Who sat?", copies) == {0, 2} and found.known("other", copies) == {1}
  titled = passages_of(
    ["the cat sat on a mat.", "the cat sat on a mat.", "a dog ran."], ["Cats", "Pets", "Dogs"]
  )
  assert found.known("who sat?", titled) == {0, 1} and found.known("none", titled) == set()
  assert titled.number("A dog ran.") is None and titled.number("dogs a dog ran.") == 2


def test_results_among_different_passages_name_all_copies_with_one_similarity():
  number_of = np.asarray([0, 1, 0, 2, 1, 0])
  similarities, numbers = (
    np.asarray([[0.9, 0.5, 0.1], [0.8, 0.7, -np.inf]]),
    np.asarray([[1, 0, 2], [2, 0, 0]]),
  )
  found = retrieval.with_copies(similarities, numbers, number_of)
  assert found[0].tolist() == [[0.9, 0.9, 0.5], [0.8, 0.7, 0.7]]
  assert found[1].tolist() == [[1, 4, 0], [3, 0, 2]]


def test_figures_of_copies_do_not_depend_on_the_batch_and_lost_judgements_are_counted(
  small_encoder_run, tmp_path, monkeypatch
):
  """Rounding in batches of other shapes is drawn, larger than it is."""
  vectors = Embedder.vectors

  def rounded(self, inputs):
    made = vectors(self, inputs)
    return made * (1 + 1e-6 * np.random.default_rng(len(inputs)).normal(size=made.shape).astype(np.float32))

  monkeypatch.setattr(Embedder, "vectors", rounded)
  small_beir.write(tmp_path / "b", passages=20)
  corpus, judged = tmp_path / "b" / "corpus.jsonl", tmp_path / "b" / "qrels" / "test.tsv"
  lines = corpus.read_text().splitlines()
  copies = [json.dumps(json.loads(line) | {"_id": f"e{at}"}) for at, line in enumerate(lines)]
  corpus.write_text("\n".join([*lines, *copies]) + "\n")
  judged.write_text(judged.read_text() + "q2\tgone\t1\nq77\td1\t1\nq77\td2\t1\n")
  data, found = small_beir.read(tmp_path / "b"), []
  assert (data.lost_passages, data.lost_queries) == (1, 2)
  assert "q77" not in data.qrels and data.qrels["q2"]["gone"] == 1
  for size in (1, 3, 8):
    flags = [f"--model={small_encoder_run}", f"--data={tmp_path}/b", f"--batch_size={size}"]
    assert finetune_evaluate.main([*flags, f"--output={tmp_path}/{size}"]) == 0
    found.append(json.loads((tmp_path / str(size) / "results.json").read_text())["rows"][0])
  assert found[0] == found[1] == found[2] and 0 < found[0]["nDCG@10"] < 1
  said = (tmp_path / "8" / "results.md").read_text()
  assert "corpus lacks, not found as by trec_eval: 1." in said and "folder lacks, skipped: 2." in said
  judged.write_text("query-id\tcorpus-id\tscore\nq77\td1\t1\n")
  with pytest.raises(DataError, match="none of its queries"):
    small_beir.read(tmp_path / "b")


def test_the_default_prompt_of_an_imported_model_is_the_prefix_of_sides_that_have_none(tmp_path, caplog):
  modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
  modules.append({"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"})
  (tmp_path / "1_Pooling").mkdir()
  (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
  (tmp_path / "modules.json").write_text(json.dumps(modules))
  caplog.set_level("INFO")
  for prompts, default, expected in (
    ({"query": "q: ", "document": "d: "}, "document", ("q: ", "d: ")),
    ({"query": "q: ", "passage": ""}, "query", ("q: ", "")),
    ({"query": "q: "}, "query", ("q: ", "q: ")),
    ({"sts": "s: ", "other": "o: "}, "sts", ("s: ", "s: ")),
    ({"sts": "s: "}, None, ("", "")),
  ):
    caplog.clear()
    settings = {"prompts": prompts, "default_prompt_name": default}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    made = embedding_files.read(tmp_path, cased=False, positions=32)
    assert made and (made.query_prefix, made.passage_prefix) == expected
    assert ("default_prompt_name" in caplog.text) == (expected[0] == expected[1] != "")


def test_a_dry_run_finds_that_the_checkpoint_to_begin_with_is_missing(tmp_path):
  config = arguments.recipe("coco_lm_base:tiny")
  config.train.init_from = str(tmp_path / "none")
  with pytest.raises(DataError, match=r"train\.init_from="):
    dry_run.dry_run(config, workdir=str(tmp_path / "run"))


def test_the_first_step_after_the_compiled_one_has_no_speed():
  made, now = [], [0.0]
  config = ConfigDict({"train": {"log_every": 100, "total_steps": 2}})
  run = types.SimpleNamespace(config=config, recipe=types.SimpleNamespace(term_weights={}))
  speed = Throughput(
    tokens_before=lambda step: 4096 * step, flops_per_token=1.0, peak_flops=None, clock=lambda: now[0]
  )
  for total in (2, 3):
    config.train.total_steps = total
    written = types.SimpleNamespace(write=lambda step, values: made.append(values))
    intervals = Intervals(run, {}, written, speed, has_lines=False)  # type: ignore[arg-type]
    for step in range(1, total + 1):
      now[0] += 0.01
      intervals.seen(step, dict.fromkeys(["loss", *LAST], (0.0, 1.0)), None)
  assert ["perf/tokens_per_second" in values for values in made] == [False, True]
