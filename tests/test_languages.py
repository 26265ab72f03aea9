"""The text that docs/tutorials/languages.py takes out of man pages."""

import pathlib
import runpy

import pytest

PROGRAM = runpy.run_path(
  str(pathlib.Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "languages.py")
)

PAGE = r""".\" a comment
.de Vb
.ft CW
..
    ds -- of a preamble
.TH LS 1 "2021年5月"
.SH NAME
ls \- Verzeichnisinhalt \(lqauflisten\(rq
.SH BESCHREIBUNG
.PP
Siehe
.BR cat (1)
und \fB\-a\fR, \fI\,DATEI\/\fR \" not this
.B "zwei Wörter"
.TP
\&. am Anfang\e und \[u00E9]
.nf
int main(void);
.fi
.TS
a table
.TE

ende
"""


def test_running_text_is_kept_and_layout_code_and_tables_are_not():
  assert PROGRAM["paragraphs"](PAGE) == [
    "ls - Verzeichnisinhalt “auflisten”",
    "Siehe cat(1) und -a, DATEI zwei Wörter",
    ". am Anfang\\ und é",
    "ende",
  ]


def test_pages_of_other_macros_and_links_have_no_text_and_the_title_may_come_first():
  for page in ("", ".so man1/ls.1\n", ".Dd 1. Mai\n.Dt LS 1\n.Sh NAME\n.Nm ls\n", "\n.TH A 1\n"):
    assert PROGRAM["paragraphs"](page) == [], page
  assert PROGRAM["paragraphs"](".TH A 1\n.SH NAME\na - b\n") == ["a - b"]


def test_a_folder_without_packages_is_refused(tmp_path):
  with pytest.raises(SystemExit, match=r"has no manpages-\*\.deb; run `apt-get download"):
    PROGRAM["write_text"](tmp_path, tmp_path / "text")
  assert not (tmp_path / "text").exists()
