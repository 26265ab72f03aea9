"""Files of people who fine-tune and embed: names of classes, columns, copies of passages, judgements."""

import json
import types

import pyarrow
import pytest
from pyarrow import ipc, parquet

from configs import finetune_embedding
from data import rows, vocabulary
from data.errors import DataError
from data.output import columns as output_columns
from data.output import formats
from finetune.embedding import columns, load, pairs
from finetune.own import columns as own_columns
from finetune.own import targets
from finetune.own.schema import TaskSchema
from pretrain.embed.schema import EmbeddingSchema

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
    assert [targets.label_of(row, "label") for row in read[:2]] == ["not_entailment", "entailment"]
    with pytest.raises(DataError, match="no label"):
      targets.label_of(read[2], "label")
    found = [own_columns.Columns(("sentence1",), name, ()) for name in ("label", "same", "topics")]
    assert [own_columns.guess_kind(read, of)[0] for of in found] == [*["classification"] * 2, "multilabel"]
    assert "names" in own_columns.guess_kind(read, found[0])[1] and targets.label_of(read[0], "same") == "1"
    several = TaskSchema("multilabel", ("sentence1",), "topics", (), "cls", 8, separator=",")
    assert [targets.labels_of(row, several) for row in read] == [["sun", "snow"], [], ["rain"]]
    assert [str(tag) for tag in read[0].fields["tags"]] == ["O", "B-X"]
    assert targets.number_of(read[0], "label") == 1
    lines = formats.JsonLines().encode([row.fields for row in read]).splitlines()
    assert [json.loads(line)["label"] for line in lines] == VALUES["label"]
    survey = output_columns.survey(path)
    assert survey.columns["label"] == "int64"
    schema = output_columns.arrow_schema(path, survey.columns, {})
    (tmp_path / "o").write_bytes(formats.Parquet(schema).encode([row.fields for row in read]))
    assert parquet.read_table(tmp_path / "o").to_pydict() == VALUES


def test_a_class_with_a_name_is_no_score_unless_it_is_named(tmp_path):
  path = str(named_classes(tmp_path / "rte.parquet"))
  names = ["sentence1", "sentence2", "label"]
  chosen = columns.find(path, names, text="", text_pair="")
  with pytest.raises(
    DataError, match=r"0 is 'entailment', 1 is 'not_entailment'.*\n  --config.data.label=label"
  ):
    columns.refuse_classes(path, chosen, label="")
  columns.refuse_classes(path, chosen, label="label")
  asked = types.SimpleNamespace(text="sentence1", text_pair="sentence2", label="")
  with pytest.raises(DataError, match=r"\n  --label=label"):
    pairs.find_columns(path, asked)
  asked.label = "label"
  assert pairs.find_columns(path, asked).number(next(rows.read(path))) == 1.0
  asked.label = "same"
  assert pairs.find_columns(path, asked).label == "same"


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
