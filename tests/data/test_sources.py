"""Plans of input units: deterministic, complete, and refused in a sentence."""

import collections
import json
import sys
import types

import pytest

from data import errors, seqio_tasks, sources, tfds_reader
from data.prepare import command as prepare
from tests.data.conftest import make_documents, write_text


def read(plan, request):
  return [
    document
    for unit in plan.units
    for document in sources.read_documents(unit, request, collections.Counter())
  ]


def test_globs_are_sorted_and_joined(tmp_path):
  for name in ("b.txt", "a.txt", "c.jsonl"):
    (tmp_path / name).write_text("x\n")
  found = sources.expand(f"{tmp_path}/*.txt,{tmp_path}/*.jsonl,{tmp_path}/a*")
  assert found == [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.jsonl")]


def test_a_large_file_becomes_units_that_hold_every_document_once(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "MIN_UNIT_BYTES", 1_000)
  documents = make_documents(300, seed=3)
  write_text(tmp_path / "a.txt", documents[:200])
  (tmp_path / "b.jsonl").write_text(
    "".join(json.dumps({"text": "\n".join(document)}) + "\n" for document in documents[200:])
  )
  request = sources.Request(f"{tmp_path}/*")
  plan = sources.plan(request)
  assert len(plan.units) > 20
  assert read(plan, request) == documents
  assert sources.plan(request) == plan


def test_the_digest_of_the_input_notices_changed_files(tmp_path):
  path = write_text(tmp_path / "a.txt", make_documents(3, seed=3))
  request = sources.Request(str(path))
  before = sources.plan(request).input_digest
  path.write_text(path.read_text() + "more\n")
  assert sources.plan(request).input_digest != before


def test_a_file_is_read_once_however_many_names_lead_to_it(tmp_path):
  (tmp_path / "d").mkdir()
  path = write_text(tmp_path / "d" / "a.txt", make_documents(3, seed=3))
  for name in ("again", "and again"):  # two double the paths with every step down
    (tmp_path / "d" / name).symlink_to(tmp_path / "d")
  (tmp_path / "d" / "b.txt").symlink_to(path)
  for source in (
    f"{tmp_path}/d/**/*.txt",
    f"{tmp_path}/d/**",
    f"{path},{tmp_path}/d/../d/a.txt,{tmp_path}/d/*.txt",
  ):
    assert sources.expand(source) == [str(path)]


@pytest.mark.parametrize(
  "name", ["[2024] notes.txt", "old, new/[a].txt", "co[rp]us/a.txt", "a,b.txt", "it's {1}?.txt"]
)
def test_signs_of_globs_and_commas_may_be_part_of_a_name(name, tmp_path):
  (tmp_path / name).parent.mkdir(exist_ok=True)
  path = write_text(tmp_path / name, make_documents(3, seed=3))
  other = write_text(tmp_path / "other.txt", make_documents(3, seed=3))
  assert sources.expand(f"{path},{other}") == sorted([str(path), str(other)])
  assert sources.expand(f"{other},{path.parent}/*") == sorted({str(path), str(other)})
  with pytest.raises(errors.DataError, match=r"none\.txt matches no file"):
    sources.expand(f"{other},{tmp_path}/none.txt,{path}")


def test_a_directory_is_refused_with_the_glob_to_use(tmp_path):
  with pytest.raises(errors.DataError, match=f"name its files as {tmp_path}/"):
    sources.check(sources.Request(str(tmp_path)))


def test_an_installed_source_needs_nothing():
  sources.check(sources.Request("installed_docs"))


def test_every_shard_of_a_tfds_set_is_read_and_no_two_by_one_unit(tmp_path, monkeypatch):
  (tmp_path / "set" / "1.0.0").mkdir(parents=True)
  (tmp_path / "set" / "1.0.0" / "dataset_info.json").write_text("{}")
  asked = []

  def as_dataset(*, split, shuffle_files):
    asked.append((split, shuffle_files))
    return types.SimpleNamespace(as_numpy_iterator=lambda: iter([{"body": b"one\ntwo"}]))

  split = types.SimpleNamespace(num_shards=3)
  builder = types.SimpleNamespace(
    info=types.SimpleNamespace(splits={"train": split}, features=["body"]), as_dataset=as_dataset
  )
  tfds = types.SimpleNamespace(builder_from_directory=lambda path: builder)
  monkeypatch.setattr(tfds_reader, "import_tfds", lambda: tfds)
  request = sources.Request("tfds:set", text_field="body", tfds_directory=str(tmp_path))
  assert read(sources.plan(request), request) == [["one", "two"]] * 3
  assert asked == [(f"train[{shard}shard:{shard + 1}shard]", False) for shard in range(3)]


def test_every_shard_of_a_seqio_task_is_read_and_no_two_by_one_unit(monkeypatch):
  asked = []

  def get_dataset(*, shard_info, split, **_):
    asked.append((split, shard_info))
    text = types.SimpleNamespace(dtype="string", shape=types.SimpleNamespace(rank=0))
    return types.SimpleNamespace(
      element_spec={"text": text}, as_numpy_iterator=lambda: iter([{"text": b"a"}])
    )

  seqio = types.SimpleNamespace(
    ShardInfo=lambda index, count: (index, count),
    get_mixture_or_task=lambda name: types.SimpleNamespace(get_dataset=get_dataset),
  )
  monkeypatch.setattr(seqio_tasks, "_registry", lambda *_: seqio)
  monkeypatch.setattr(seqio_tasks, "plan", lambda name, **_: [seqio_tasks.Part("task", 3)])
  request = sources.Request("seqio:task")
  assert read(sources.plan(request), request) == [["a"]] * 3
  assert asked == [("train", (shard, 3)) for shard in range(3)]


@pytest.mark.parametrize("source", ["tfds:books", "seqio:a_task"])
@pytest.mark.parametrize("missing", tfds_reader._PACKAGES)
def test_without_tensorflow_such_a_source_is_refused_in_one_line(source, missing, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, missing, None)  # as on Python 3.14
  line = f"--source={source} needs {missing}, not installed here; .*Python 3.11 to 3.13"
  with pytest.raises(errors.ConfigError, match=line) as error:
    sources.check(sources.Request(source, tfds_directory=str(tmp_path)))
  assert str(error.value).endswith(":\n  pip install -r requirements.txt")
  with pytest.raises(errors.ConfigError, match=f"a seqio Task needs {missing}"):
    tfds_reader.import_tfds()
  path = write_text(tmp_path / "a.txt", make_documents(3, seed=3))
  sources.check(sources.Request(str(path)))  # files do without


@pytest.mark.parametrize("source", ["tfds:books", "seqio:wikipedia_books"])
@pytest.mark.parametrize("download", [True, False])
def test_data_is_downloaded_if_the_flag_says_so(source, download, tmp_path, monkeypatch):
  asked = []
  monkeypatch.setattr(
    tfds_reader, "find_or_download", lambda directory, name, *, download: asked.append(download)
  )
  flags = [f"--source={source}", f"--output={tmp_path}", *["--download"] * download]
  sources.check(sources.request(prepare.parse(flags)))
  assert asked and set(asked) == {download}
