"""Languages by CLD2."""

import sys

import pytest

from data import errors
from data.clean import language

pycld2 = pytest.importorskip("pycld2", reason="needs requirements-clean.txt")

GERMAN = ["Der Hund ist ein guter Freund des Menschen.", "Er bellt nur, wenn jemand vor der Tür steht."]
ENGLISH = ["The dog is a good friend of man.", "He only barks when a stranger is at the door of the house."]
HEBREW = ["הכלב הוא חבר טוב של האדם והוא נובח רק כאשר זר עומד ליד הדלת."]
# Technical text, whose detection CLD2 does not call reliable.
PAGE = ["cat - объединяет файлы и направляет их на стандартный вывод", "cat [ПАРАМЕТР]... [ФАЙЛ]..."]
PAGE += ["-A, --show-all эквивалентно -vET", "-b, --number-nonblank нумеровать непустые строки"] * 9


def test_documents_in_the_wanted_languages_are_kept():
  assert not pycld2.detect("\n".join(PAGE), isPlainText=True)[0]
  tagged = ["<p title='", *ENGLISH * 2, "'>", *GERMAN]  # as HTML, CLD2 would leave out the English
  long = [*ENGLISH * 110, *GERMAN * 500]  # of which 10,000 characters are looked at
  assert sum(map(len, ENGLISH * 110)) + 109 * 2 < 10_500
  failures = []
  for wanted, document, dropped in (
    ("de+en", GERMAN, ""),
    ("de+en", ENGLISH, ""),
    ("de+en", HEBREW, "language he"),
    ("en", GERMAN, "language de"),
    ("he", HEBREW, ""),
    ("en", ["abc"], "language not detected"),
    ("ru", PAGE, ""),
    ("uk", PAGE, "language ru"),
    ("en", tagged, ""),
    ("en", long, ""),
  ):
    found = language.language(document, wanted=language.codes(wanted))
    if found != (dropped or document):
      failures.append(f"{wanted} {document[0]}: {found}")
  assert not failures, "\n".join(failures)
  assert language.codes("he+no+nb+jv") == {"iw", "no", "jw"}
  for code in ("eng", "xx", "", "EN"):
    with pytest.raises(errors.ConfigError, match=rf"language '{code}'.* known: aa, ab, .*, zzp, he"):
      language.codes(f"de+{code}")


def test_no_character_stops_the_detection():
  """CLD2 raises for each of these in a text; all others it takes."""
  for code in range(sys.maxunicode + 1):
    if code < 0x300 or 0xD7FF < code < 0xE001 or 0xFDCF < code < 0xFDF1 or code & 0xFFFF > 0xFFFC:
      character = chr(code)
      language.language(["Hello " + character], wanted=frozenset())
  with pytest.raises(pycld2.error):
    pycld2.detect("Hello \x0b", isPlainText=True)
