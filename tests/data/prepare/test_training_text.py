"""The sample a vocabulary is trained on: rates, units, bounds; the same for any number of processes."""

import collections

import pytest

from data import errors, sources
from data.prepare import pipeline, sentences, training_text, workers
from data.vocabulary import train
from tests.data.conftest import make_documents, write_text


def taken(path, rate=1.0, **fields):
  request = sources.Request(str(path))
  job = pipeline.Job(request, "", 512, "complete", seed=3, heldout_fraction=0.1, fraction=1.0)
  return training_text.Source(job, sources.plan(request).units, rate, **fields)


def sample(*parts, num_workers=1):
  with workers.pool(num_workers) as pool, training_text.sample(parts, pool) as text:
    return list(text)


def lines(documents):
  return [
    s for document in documents for line in document for s in sentences.split(line, collections.Counter())
  ]


def training(documents):
  return [d for d in documents if pipeline.document_fraction(d, "heldout", 3) >= 0.1]


def size(documents):
  return sum(len(line) for document in documents for line in document)


@pytest.mark.parametrize(
  ("characters", "rates", "most", "expected"),
  [
    ([100], [1], 200, [1]),  # all of a small source
    ([800], [5], 200, [0.25]),
    ([1_000, 1_000], [3, 1], 400, [0.3, 0.1]),
    ([1_000, 10], [0.9, 0.1], 400, [0.09, 1]),  # 90 and 10 characters: the second has no more
    ([100, 900], [1, 1], 10_000, [1, 1 / 9]),
    ([0], [1], 200, [1]),
  ],
)
def test_the_largest_sample_with_the_rates(characters, rates, most, expected):
  assert training_text.fractions(characters, rates, most=most) == pytest.approx(expected)


def test_a_small_source_is_taken_whole_and_in_order_without_held_out_documents(tmp_path):
  documents = make_documents(90, seed=1)
  path = write_text(tmp_path / "a.txt", documents)
  assert 0 < len(training(documents)) < 90
  assert sample(taken(path)) == lines(training(documents))


def test_a_large_source_gives_documents_of_all_its_units(tmp_path, monkeypatch, caplog):
  caplog.set_level("INFO", logger="data")
  parts = [make_documents(200, seed=number) for number in range(4)]
  for number, documents in enumerate(parts):
    write_text(tmp_path / f"{number}.txt", documents)
  whole = sum(size(training(documents)) for documents in parts)
  monkeypatch.setattr(train, "MAX_TRAINING_CHARACTERS", whole // 4)
  source = taken(tmp_path / "*.txt")
  assert len(source.units) == 4
  found = sample(source)
  chosen = [
    [d for d in training(documents) if pipeline.document_fraction(d, "vocabulary", 3) < (whole // 4) / whole]
    for documents in parts
  ]
  assert found == [line for documents in chosen for line in lines(documents)]
  assert all(25 < len(documents) < 65 for documents in chosen)  # a quarter of 180: 45, within 3 deviations
  assert f"is trained on 25.00% of {whole:,} characters" in caplog.text


def test_sources_have_their_rates_for_any_number_of_processes(tmp_path):
  for number, name in enumerate(("large", "small")):
    write_text(tmp_path / f"{name}.txt", make_documents(600 - 500 * number, seed=number))
  parts = [taken(tmp_path / "large.txt", 0.6), taken(tmp_path / "small.txt", 0.4)]
  found = sample(*parts)
  small = lines(training(make_documents(100, seed=1)))
  assert found[-len(small) :] == small  # all of the source that limits the sample
  share = sum(map(len, small)) / sum(map(len, found))
  assert share == pytest.approx(0.4, abs=0.06)
  assert sample(*parts, num_workers=2) == found


def test_one_of_several_sources_without_text_is_named(tmp_path):
  write_text(tmp_path / "a.txt", make_documents(9, seed=1))
  (tmp_path / "blank.txt").write_text("\n \n\n")
  with pytest.raises(errors.DataError, match=r"blank\.txt has no usable text"):
    sample(taken(tmp_path / "a.txt"), taken(tmp_path / "blank.txt"))


def test_a_source_of_which_no_document_is_in_the_sample_is_named(tmp_path):
  """A book without blank lines is one document, which a hash takes or leaves whole."""
  write_text(tmp_path / "a.txt", make_documents(2, seed=1))
  book = next(
    document
    for number in range(99)
    for document in [[f"Chapter {number}.", *make_documents(1, seed=number)[0] * 20]]
    if training([document]) and pipeline.document_fraction(document, "vocabulary", 3) > 0.9
  )
  write_text(tmp_path / "book.txt", [book])
  with pytest.raises(errors.DataError, match=r"book\.txt: none of its documents is in a sample of "):
    sample(taken(tmp_path / "a.txt"), taken(tmp_path / "book.txt"))


def test_a_unit_s_text_appears_whole_or_not_at_all(tmp_path, monkeypatch):
  source = taken(write_text(tmp_path / "a.txt", make_documents(9, seed=1)))
  path = tmp_path / "made" / "0"
  path.parent.mkdir()

  def damaged(*_):
    yield ["One sentence."]
    assert not path.exists()
    raise errors.DataError("damaged")

  with monkeypatch.context() as patched, pytest.raises(errors.DataError, match="damaged"):
    patched.setattr(training_text, "_documents", damaged)
    training_text.write(source.job, 1.0, source.units[0], str(path))
  assert not list(path.parent.iterdir())
  training_text.write(source.job, 1.0, source.units[0], str(path))
  assert [file.name for file in path.parent.iterdir()] == ["0"]
