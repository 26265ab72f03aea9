"""The sample a vocabulary is trained on: rates, units, bounds; the same for any number of processes."""

import pytest

from data import errors, sources
from data.prepare import engine, pipeline, training_text
from data.vocabulary import train
from tests.data.conftest import make_documents, write_text
from tests.data.prepare.test_prepare import lines


def taken(path, rate=1.0):
  request = sources.Request(str(path))
  job = pipeline.Job(request, "", 512, "complete", seed=3, heldout_fraction=0.1, fraction=1.0)
  return training_text.Source(job, sources.plan(request).units, rate)


def sample(*parts, num_workers=1, directory=None):
  with engine.pool(num_workers) as pool, training_text.sample(parts, pool, directory) as text:
    return list(text)


def training(documents):
  return [d for d in documents if pipeline.document_fraction(d, "heldout", 3) >= 0.1]


def size(documents):
  return sum(len(line) for document in documents for line in document)


def chosen(documents, fraction):
  return [d for d in training(documents) if pipeline.document_fraction(d, "vocabulary", 3) < fraction]


def test_the_largest_sample_with_the_rates():
  cases = [  # characters, rates, most, expected
    ([100], [1], 200, [1]),  # all of a small source
    ([800], [5], 200, [0.25]),
    ([1_000, 1_000], [3, 1], 400, [0.3, 0.1]),
    ([1_000, 10], [0.9, 0.1], 400, [0.09, 1]),  # 90 and 10 characters: the second has no more
    ([100, 900], [1, 1], 10_000, [1, 1 / 9]),
    ([0], [1], 200, [1]),
  ]
  found = [training_text.fractions(characters, rates, most=most) for characters, rates, most, _ in cases]
  assert found == [pytest.approx(expected) for *_, expected in cases]


def test_a_small_source_is_taken_whole_and_in_order_without_held_out_documents(tmp_path):
  documents = make_documents(90, seed=1)
  path = write_text(tmp_path / "a.txt", documents)
  (tmp_path / "sample-of-a-killed-command").mkdir()
  assert 0 < len(training(documents)) < 90
  assert sample(taken(path), directory=tmp_path) == lines(training(documents))
  assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
  (tmp_path / "blank.txt").write_text("\n \n\n")
  assert sample(taken(tmp_path / "blank.txt")) == []  # which the training refuses


def test_a_large_source_gives_documents_of_all_its_units(tmp_path, monkeypatch, caplog):
  caplog.set_level("INFO", logger="data")
  parts = [make_documents(200, seed=number) for number in range(4)]
  for number, documents in enumerate(parts):
    path = write_text(tmp_path / f"{number}.txt", documents)
    path.write_text(path.read_text() + " " * 600_000)  # so that each is a unit of its own
  whole = sum(size(training(documents)) for documents in parts)
  monkeypatch.setattr(train, "MAX_TRAINING_CHARACTERS", whole // 4)
  source = taken(tmp_path / "*.txt")
  assert len(source.units) == 4
  assert sample(source) == [line for d in parts for line in lines(chosen(d, (whole // 4) / whole))]
  assert f"is trained on 25.00% of {whole:,} characters" in caplog.text


def test_sources_have_their_rates_for_any_number_of_processes(tmp_path):
  large, small = make_documents(600, seed=0), make_documents(100, seed=1)
  parts = [taken(write_text(tmp_path / "large.txt", large), 0.6)]
  parts.append(taken(write_text(tmp_path / "small.txt", small), 0.4))
  found = sample(*parts)
  # All of the source that limits the sample, and one and a half times its characters of the other.
  fraction = size(training(small)) / 0.4 * 0.6 / size(training(large))
  assert found == [*lines(chosen(large, fraction)), *lines(training(small))]
  assert sample(*parts, num_workers=2) == found


def test_one_of_several_sources_without_text_or_without_a_document_in_the_sample_is_named(tmp_path):
  small = write_text(tmp_path / "a.txt", make_documents(2, seed=1))
  (tmp_path / "blank.txt").write_text("\n \n\n")
  with pytest.raises(errors.DataError, match=r"blank\.txt has no usable text"):
    sample(taken(small), taken(tmp_path / "blank.txt"))
  # A book without blank lines is one document, which a hash takes or leaves whole.
  books = ([f"Chapter {number}.", *make_documents(1, seed=number)[0] * 20] for number in range(99))
  book = next(book for book in books if training([book]) and not chosen([book], 0.9))
  write_text(tmp_path / "book.txt", [book])
  with pytest.raises(errors.DataError, match=r"book\.txt: none of its documents is in a sample of "):
    sample(taken(small), taken(tmp_path / "book.txt"))
