"""Works with our Tasks as a notebook would; a part of `with_tensorflow.py`."""

import contextlib
import functools
import io
import json
import os
import pathlib
import pickle
import shutil

import numpy as np
import sentencepiece
import seqio
import tensorflow as tf

import data.tasks
from data import manifest, records, vocabulary
from data.prepare import __main__ as command
from data.prepare import pipeline
from data.vocabulary import train
from tests import byte_level
from tests.data.conftest import make_documents, refused, write_text

LENGTH = 32
CHUNK_CHARACTERS = 3_000  # exactly those of the first document of part3.txt, whose letters are two bytes
# Each kind of vocabulary and each packing once: what they do is tested in their own folders.
PACKED = {"plain": "complete", "official": "none", "wordpiece": "concat", "byte_level": "segments"}
ODD = ["A \x00 control. \ud800 Half! Q?", "", " \u3000 ", "unbroken" * 20, "Two.\r One? \u2028 Three"]


def results_of(directory: pathlib.Path) -> dict:
  """Returns what the Tasks of all sections gave, as JSON values."""
  global DIRECTORY, PLAIN, SOURCE, results
  DIRECTORY, PLAIN, SOURCE, results = directory, directory / "plain", f"{directory}/part*", {}
  directory.mkdir()
  make_inputs()
  for section in (vocabularies, packed_tasks, prepared_tasks, converter, tokenised, refusals):
    section()
  return results


def ids(dataset) -> list[np.ndarray]:
  return [example["inputs"] for example in dataset.as_numpy_iterator()]


def equal(some, others) -> bool:
  return len(some) == len(others) > 0 and all(map(np.array_equal, some, others))


def make_inputs() -> None:
  write_text(DIRECTORY / "part0.txt", make_documents(60, seed=0))
  lines = [json.dumps({"text": text}) for text in [*ODD, *("\n".join(d) for d in make_documents(9, 8))]]
  (DIRECTORY / "part2.jsonl").write_text("\n".join(lines))
  accents = [[text.replace("e", "é").replace("t", "ř") for text in d] for d in make_documents(20, seed=3)]
  write_text(DIRECTORY / "part3.txt", [[f"Où {'é' * 46}."] * (CHUNK_CHARACTERS // 50), *accents])
  text = [paragraph for document in make_documents(100, seed=9) for paragraph in document]
  train.train(text, PLAIN, kind="sentencepiece", cased=False, size=150)
  model = PLAIN / "sp.model"
  train.import_files(DIRECTORY / "official", sp_model=model, cased=False, pretokenization="official")
  train.train(text, DIRECTORY / "wordpiece", kind="wordpiece", cased=False, size=170)
  path = byte_level.write(DIRECTORY / "stock")
  train.import_files(DIRECTORY / "byte_level", tokenizer=str(path), cased=True)
  (DIRECTORY / "tiny.txt").write_text("The time.\n\nHis way!\n")


def prepare(output: pathlib.Path, *more: str, source: str = "") -> tuple[int, pathlib.Path]:
  flags = [f"--source={source or SOURCE}", f"--output={output}", f"--length={LENGTH}", "--workers=1"]
  return command.main([*flags, *more]), output


def stored(directory: pathlib.Path, split: str) -> list[np.ndarray]:
  """Returns the records of a directory in the order of its files, without padding."""
  opened = records.PackedRecords(directory, split=split, length=LENGTH, seed=0)
  return [row[row != opened.pad] for row in opened.numbered(range(len(opened)))]


def in_text_order(task: seqio.Task, split: str) -> list[np.ndarray]:
  """Returns a Task's blocks in the order of its units."""
  units = len(task.source.list_shards(split))
  parts = (seqio.ShardInfo(unit, units) for unit in range(units))
  return [
    block for part in parts for block in ids(task.get_dataset(split=split, shuffle=False, shard_info=part))
  ]


def vocabularies() -> None:
  text = "The TIME of his way, isn't it? \u4e2d"
  for kind in PACKED:
    ours, words = data.tasks.DirectoryVocabulary(DIRECTORY / kind), vocabulary.load(DIRECTORY / kind)
    copy = data.tasks.DirectoryVocabulary(shutil.copytree(DIRECTORY / kind, DIRECTORY / f"{kind}_copy"))
    special, want = words.special_ids, words.encode(text)
    features = {"inputs": seqio.Feature(ours, add_eos=False)}
    tokenized = seqio.preprocessors.tokenize(tf.data.Dataset.from_tensors({"inputs": text}), features)
    row = [*want, special.sep, *want]
    rows = np.asarray([row, [special.sep] * len(row)], np.int32)
    pickled = pickle.dumps(ours)
    results[f"vocabulary {kind}"] = {
      "encoded": equal([*ids(tokenized), ours.encode(text), ours.encode_tf(tf.constant(text))], [want] * 3),
      "decoded": ours.decode(row) == words.decode(row) == ours.decode_tf(tf.constant(row)).numpy().decode(),
      "rows": [one.decode() for one in ours.decode_tf(rows).numpy()] == [*map(words.decode, rows.tolist())],
      "pickled": len(pickled) - len(str(DIRECTORY)) < 100 and pickle.loads(pickled) == ours,
      "copy": ours == copy and len({ours, copy}) == 1,
      "others": [other for other in PACKED if ours == data.tasks.DirectoryVocabulary(DIRECTORY / other)]
      == [kind],
      "special": [ours.bos_id, ours.pad_id, ours.unk_id, ours.eos_id, ours.vocab_size]
      == [special.cls, special.pad, special.unk, None, words.size],
    }


def packed_tasks() -> None:
  for kind, mode in PACKED.items():
    name = f"{kind}_{mode}"
    asked = [f"--vocabulary={DIRECTORY / kind}", f"--packing={mode}", "--heldout_fraction=0.2"]
    _, output = prepare(DIRECTORY / name, *asked)
    task = data.tasks.register_packed(name, SOURCE, DIRECTORY / kind, LENGTH, mode, heldout_fraction=0.2)
    results[f"packed {name}"] = equal(in_text_order(task, "train"), stored(output, "train"))
  keyed = sorted(block.tobytes() for block in in_text_order(task, "train"))
  whole = sorted(map(bytes, ids(task.get_dataset(shuffle=False))))
  results["packed held out"] = equal(in_text_order(task, "heldout"), stored(output, "heldout"))
  task = data.tasks.register_packed("tiny", f"{DIRECTORY}/tiny.txt", PLAIN, 64)
  words = vocabulary.load(PLAIN)
  cls, sep = words.special_ids.cls, words.special_ids.sep
  by_hand = [cls, *words.encode("The time."), sep, sep, *words.encode("His way!"), sep]
  lines = seqio.TextLineDataSource({"train": f"{DIRECTORY}/part0.txt"})
  source = seqio.FunctionDataSource(functools.partial(_renamed, lines), ["train"])
  of_source = data.tasks.register_packed("lines", source, PLAIN, LENGTH, text_field="body")
  _, output = prepare(DIRECTORY / "lines", f"--vocabulary={PLAIN}", source="seqio:lines_text")
  one, again, other = (
    ids(seqio.get_mixture_or_task("plain_complete").get_dataset(shuffle=True, seed=seed))
    for seed in (1, 1, 2)
  )
  results["packed of Tasks"] = {
    "as a whole": keyed == whole,
    "by hand": [block.tolist() for block in ids(task.get_dataset(shuffle=False))] == [by_hand],
    "a user's source": equal(in_text_order(of_source, "train"), stored(output, "train")),
    "same seed": equal(one, again) and not equal(one, other),
    "permuted": sorted(map(bytes, one)) == sorted(map(bytes, other)),
  }


def _renamed(source, split, shuffle_files, seed=None):
  return source.get_dataset(split, False).map(lambda line: {"body": line})


def converted(name: str, **options) -> seqio.FeatureConverter:
  return data.tasks.EncoderConverter.of(name)(pack=False, use_custom_packing_ops=False, **options)


def batches(name: str, number: int, **options) -> list[np.ndarray]:
  dataset = seqio.get_dataset(
    name, {"inputs": LENGTH}, converted(name), shuffle=True, num_epochs=None, **options
  )
  return [batch["encoder_input_tokens"] for batch in dataset.take(number).as_numpy_iterator()]


def prepared_tasks() -> None:
  directory = DIRECTORY / "plain_complete"
  task = data.tasks.register_prepared("notebook_prepared", directory)
  opened = records.PackedRecords(directory, length=LENGTH, seed=7)
  number = 2 * len(opened) // 16
  whole = [opened.batch(step, 16) for step in range(number)]
  parts = [
    batches(task.name, 20, seed=7, batch_size=5, shard_info=seqio.ShardInfo(index, 3)) for index in range(3)
  ]
  of_three = [opened.batch(step, 15) for step in range(20)]
  late = task.get_dataset({"inputs": LENGTH}, seed=7, num_epochs=None, first=16 * 1_000_000).batch(16)
  epoch = ids(task.get_dataset(seed=3))
  in_order = ids(task.get_dataset(shuffle=False, num_epochs=2, use_cached=True))
  splits = ("train", "heldout")
  results["prepared"] = {
    "batches": equal(batches(task.name, number, seed=7, batch_size=16), whole),
    "shards": all(equal(part, [batch[at::3] for batch in of_three]) for at, part in enumerate(parts)),
    "late": equal(ids(late.take(2)), [opened.batch(1_000_000, 16), opened.batch(1_000_001, 16)]),
    "epoch": sorted(map(bytes, epoch)) == sorted(map(bytes, in_order[: len(opened)])),
    "order of the files": equal(in_order, [*opened.numbered(range(len(opened)))] * 2),
    "examples": [*map(task.num_input_examples, splits)]
    == [len(stored(directory, split)) for split in splits],
  }


def converter() -> None:
  task = data.tasks.register_packed("row", f"{DIRECTORY}/tiny.txt", PLAIN, 16, "eos", heldout_fraction=0)
  first = next(iter(seqio.get_dataset("row", {"inputs": 16}, converted("row")).as_numpy_iterator()))
  size = len(ids(task.get_dataset(shuffle=False))[0])
  results["converter"] = {name: value.tolist() for name, value in first.items()} | {"size": size}
  task = data.tasks.register_packed(
    "texts", f"{DIRECTORY}/part0.txt", PLAIN, 256, "segments", heldout_fraction=0
  )
  rows = seqio.get_dataset("texts", {"inputs": 256}, converted("texts"), shuffle=False).take(40)
  rows = [{name: row.tolist() for name, row in each.items()} for each in rows.as_numpy_iterator()]
  results["texts of rows"] = [rows, task.vocabulary.bos_id, task.vocabulary.pad_id]


def tokenised() -> None:
  """Tasks whose examples are ids, through `data.prepare`."""
  plain = data.tasks.DirectoryVocabulary(PLAIN)
  special = plain.words.special_ids
  examples = {
    "sentences": [plain.encode("the time of his"), plain.encode("way"), list(range(5, 5 + 40))],
    "blocks": [[special.cls, 9, 10, special.sep, special.pad], [special.cls, 11, special.sep]],
    "broken_ids": [[9, special.sep, 10]],
    "long": [[special.cls, *[9] * 40]],
    "outside": [[9, 150]],
    "many": [[number, number + 1] for number in range(5, 145)],
  }
  strange = str(DIRECTORY / "strange")
  text = [paragraph for document in make_documents(50, seed=9) for paragraph in document]
  sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_prefix=strange, vocab_size=60)
  stock = {"stock": seqio.SentencePieceVocabulary(f"{strange}.model")}
  for name in [*examples, *stock]:
    ragged = tf.ragged.constant(examples.get(name, [[3, 4]]), tf.int32)
    seqio.TaskRegistry.add(
      name,
      seqio.FunctionDataSource(functools.partial(_slices, ragged), ["train"]),
      preprocessors=[lambda dataset: dataset.map(lambda row: {"targets": row})],
      output_features={"targets": seqio.Feature(stock.get(name, plain), add_eos=False)},
    )
  ours = f"--vocabulary={PLAIN}"
  for name in examples:
    asked = (
      ["--packing=eos", "--fraction=0.5", "--heldout_fraction=0.3"]
      if name == "many"
      else ["--heldout_fraction=0"]
    )
    code, output = prepare(DIRECTORY / f"from {name}", ours, *asked, source=f"seqio:{name}")
    results[f"tokenised {name}"] = [code] if code else [
      sorted(row.tolist() for row in stored(output, split))
      for split in ("train", "heldout") if manifest.read(output).splits[split].records
    ]  # fmt: skip
    if name == "blocks":  # a row has padding on the right anyway; the manifest counts what is stored
      results["tokens of blocks"] = manifest.read(output).splits["train"].tokens
  texts = [[" ".join(map(str, ids))] for ids in examples["many"]]
  results["fractions of many"] = [
    [pipeline.document_fraction(text, purpose, 0) for purpose in ("fraction", "heldout")] for text in texts
  ]
  data.tasks.register_packed("flat", SOURCE, PLAIN, LENGTH, "none", heldout_fraction=0)
  asked = [ours, "--heldout_fraction=0", "--packing=none"]
  (_, one), (_, other) = (
    prepare(DIRECTORY / name, *asked, source=source)
    for name, source in (("of_text", SOURCE), ("of_blocks", "seqio:flat"))
  )
  results["packed of Tasks"]["stored"] = equal(stored(one, "train"), stored(other, "train"))
  wrong = {
    "no vocabulary": ("seqio:sentences", []),
    "another vocabulary": ("seqio:sentences", [f"--vocabulary={DIRECTORY / 'official'}"]),
    "another packing": ("seqio:flat", [ours]),
    "stock": ("seqio:stock", [ours]),
  }
  for name, (source, asked) in wrong.items():
    errors_of = io.StringIO()
    with contextlib.redirect_stderr(errors_of):
      code, output = prepare(DIRECTORY / "refused", *asked, source=source)
    results[f"refused {name}"] = [code, errors_of.getvalue().strip().splitlines()[-1]]
  results["packed of Tasks"]["nothing of what is refused"] = not output.exists()


def _slices(ragged, split, shuffle_files, seed=None):
  return tf.data.Dataset.from_tensor_slices(ragged)


def refusals() -> None:
  os.chdir(DIRECTORY)
  results["names"] = sorted(name for name in seqio.TaskRegistry.names() if "_packed_" in name)
  corpus = seqio.get_mixture_or_task("wikipedia_books_packed_512")
  results["refused no vocabulary yet"] = refused(lambda: corpus.get_dataset(shuffle=False))
  shutil.copytree(PLAIN, DIRECTORY / "vocabularies/wikipedia_books")
  seqio.set_tfds_data_dir_override(str(DIRECTORY / "nowhere"))
  results["refused no data"] = refused(lambda: corpus.get_dataset(shuffle=False))
  task, few = map(seqio.get_mixture_or_task, ("plain_complete", "tiny"))
  lengths, stock = {"inputs": LENGTH}, converted("plain_complete")
  prepared = converted("notebook_prepared")
  calls = {
    "no seed": lambda: seqio.get_dataset("plain_complete", lengths, stock, shuffle=True),
    "no length": lambda: seqio.get_dataset("plain_complete", {}, stock),
    "short": lambda: seqio.get_dataset("plain_complete", {"inputs": LENGTH - 1}, stock),
    "short, prepared": lambda: seqio.get_dataset("notebook_prepared", {"inputs": LENGTH - 1}, prepared),
    "pack": lambda: data.tasks.EncoderConverter.of("notebook_prepared")(pack=True),
    "no pad": lambda: data.tasks.EncoderConverter(pack=False, use_custom_packing_ops=False),
    "length": lambda: data.tasks.register_packed("absent_records", SOURCE, PLAIN, 7),
    "seed": lambda: data.tasks.register_packed("x", SOURCE, PLAIN, seed=-1),
    "nothing held out": lambda: few.get_dataset(split="heldout", shuffle=False),
    "ids": lambda: data.tasks.register_packed("twice", "seqio:flat", PLAIN, 32).get_dataset(shuffle=False),
  }
  results.update({f"refused {name}": refused(call) for name, call in calls.items()})
  cached = seqio.get_mixture_or_task("notebook_prepared")
  results["cached as"] = [task.supports_caching, cached.supports_caching]
