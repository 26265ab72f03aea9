"""Languages by CLD2."""

import sys

import pytest

from data import errors
from data.clean import language

pycld2 = pytest.importorskip("pycld2", reason="needs requirements-clean.txt")

GERMAN = [
  "Der Hund ist ein guter Freund des Menschen.",
  "Er bellt nur, wenn jemand Fremdes vor der Tür steht.",
]
ENGLISH = ["The dog is a good friend of man.", "He only barks when a stranger is at the door of the house."]
HEBREW = ["הכלב הוא חבר טוב של האדם והוא נובח רק כאשר זר עומד ליד הדלת."]


def test_documents_in_the_wanted_languages_are_kept():
  wanted = language.codes("de+en")
  assert language.language(GERMAN, wanted=wanted) == GERMAN
  assert language.language(ENGLISH, wanted=wanted) == ENGLISH
  assert language.language(HEBREW, wanted=wanted) == "language he"
  assert language.language(GERMAN, wanted=language.codes("en")) == "language de"


def test_today_s_code_of_a_language_is_known():
  assert language.codes("he+no") == {"iw", "no"}
  assert language.language(HEBREW, wanted=language.codes("he")) == HEBREW


def test_a_document_without_a_language_is_dropped():
  assert language.language(["abc"], wanted=language.codes("en")) == "language not detected"


def test_technical_text_is_kept_though_its_detection_is_not_called_reliable():
  page = ["cat - объединяет файлы и направляет их на стандартный вывод", "cat [ПАРАМЕТР]... [ФАЙЛ]..."]
  page += ["-A, --show-all эквивалентно -vET", "-b, --number-nonblank нумеровать непустые строки"] * 9
  is_reliable, _, _ = pycld2.detect("\n".join(page), isPlainText=True)
  assert not is_reliable
  assert language.language(page, wanted=language.codes("ru")) == page
  assert language.language(page, wanted=language.codes("uk")) == "language ru"


@pytest.mark.parametrize("code", ["eng", "xx", "", "EN"])
def test_an_unknown_language_is_refused_with_the_known_ones(code):
  with pytest.raises(errors.ConfigError, match=rf"unknown language '{code}'.* known: aa, ab, .*, zzp, he"):
    language.codes(f"de+{code}")


def test_no_character_stops_the_detection():
  """CLD2 raises for each of these in a text; all others it takes."""
  for code in range(sys.maxunicode + 1):
    if code < 0x300 or 0xD7FF < code < 0xE001 or 0xFDCF < code < 0xFDF1 or code & 0xFFFF > 0xFFFC:
      character = chr(code)
      language.language(["Hello " + character], wanted=frozenset())
  with pytest.raises(pycld2.error):
    pycld2.detect("Hello \x0b", isPlainText=True)


def test_markup_is_text_and_the_end_of_a_long_document_is_not_looked_at():
  """In HTML CLD2 would leave out the English."""
  tagged = ["<p title='", *ENGLISH * 2, "'>", *GERMAN]
  assert language.language(tagged, wanted=language.codes("en")) == tagged
  long = [*ENGLISH * 150, *GERMAN * 500]
  assert sum(map(len, ENGLISH * 150)) > language.MOST_CHARACTERS
  assert language.language(long, wanted=language.codes("en")) == long
