"""Lists the data sets that replace the papers' texts, with sizes, licences and origins.

A corpus exists in two forms: files in the layout of their publishers, and TFDS data sets. `seqio:NAME` reads
the TFDS form (`data/seqio_tasks.py`). `python -m data.corpora` prints this table, and the commands that train
a model on a corpus.

Sizes are from the data sets' cards and the TFDS catalogue, which include titles, addresses and dates; 1 GB is
10^9 bytes.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Source:
  """A publicly available data set."""

  name: str  # also the directory of its records
  what: str  # a description
  gigabytes: float  # of uncompressed text
  size_from: str  # origin of that number
  licence: str
  files: str = ""  # glob relative to the directory of all sources; '': not distributed as files
  address: str = ""  # where the files can be downloaded
  tfds_name: str = ""  # with its version; '': not in TFDS
  text_field: str = "text"  # the feature of the TFDS data set with the text
  tfds_needs: str = ""  # requirements for building the TFDS data set


@dataclasses.dataclass(frozen=True)
class Part:
  """A data set in a corpus, the fraction of it to use, and the text of the papers that it replaces."""

  source: Source
  replaces: str  # a text of the papers; '': the papers used this source
  keep: float = 1.0  # fraction of its documents to use

  @property
  def gigabytes(self) -> float:
    """The size of the used fraction in GB (10^9 bytes); it is also the source's rate in the mixture."""
    return round(self.keep * self.source.gigabytes, 2)


@dataclasses.dataclass(frozen=True)
class Corpus:
  """A training text of the papers: data sets that replace it, and the settings of a recipe that uses it."""

  papers: str  # the papers' name for it
  papers_gigabytes: int  # the size in the papers
  files: tuple[Part, ...]
  tfds: tuple[Part, ...]
  config: str  # the recipe whose settings these are
  vocabulary_size: int
  cased: bool
  length: int = 512
  packing: str = "complete"
  vocabulary_kind: str = "sentencepiece"


_HUB = "https://huggingface.co/datasets"
_BEAM = "Apache Beam (requirements-beam.txt)"
_COMMON_CRAWL = f"{_BEAM}, Common Crawl's files and days of a cluster"

_WIKIPEDIA = Source(
  "wikipedia",
  "English Wikipedia",
  21.35,
  "TFDS catalogue: 19.88 GiB, 6,672,479 articles of June 2023",
  "CC BY-SA 3.0, GFDL",
  files="wikipedia/*.en/train-*.parquet",
  address=f"{_HUB}/wikimedia/wikipedia",
  tfds_name="wikipedia/20230601.en:1.0.0",
  tfds_needs=f"{_BEAM}, mwparserfromhell, mwxml",
)
_PG19 = Source(
  "pg19",
  "books of Project Gutenberg from before 1919",
  11.45,
  "card: 11,453,688,452 bytes, 28,602 books",
  "Apache 2.0",
  files="pg19/**/train-*.parquet",
  address=f"{_HUB}/emozilla/pg19",
  tfds_name="pg19:0.1.1",
  text_field="book_text",
  tfds_needs="nothing more",
)
_REALNEWSLIKE = Source(
  "c4_realnewslike",
  "pages of C4 from sites with news",
  38.17,
  "card: 38,165,657,946 bytes, 13,799,838 pages",
  "ODC-BY, terms of Common Crawl",
  files="c4/realnewslike/c4-train.*.json.gz",
  address=f"{_HUB}/allenai/c4",
  tfds_name="c4/realnewslike:3.1.0",
  tfds_needs=_COMMON_CRAWL,
)
_WEBTEXTLIKE = Source(
  "c4_webtextlike",
  "pages of C4 whose addresses are in OpenWebText",
  19.33,
  "TFDS catalogue: 18.00 GiB, 4,500,788 pages",
  "ODC-BY, terms of Common Crawl",
  tfds_name="c4/webtextlike:3.1.0",
  tfds_needs=f"{_COMMON_CRAWL}, OpenWebText.zip by hand",
)
_OPENWEBTEXT = Source(
  "openwebtext",
  "OpenWebText itself",
  39.77,
  "card: 39,769,494,896 bytes, 8,013,769 pages",
  "CC0 for the collection; the pages belong to their authors",
  files="openwebtext/**/*.parquet",
  address=f"{_HUB}/Skylion007/openwebtext",
)
_C4 = Source(
  "c4_en",
  "C4, cleaned pages of Common Crawl",
  828.59,
  "card: 828,589,180,707 bytes, 364,868,892 pages",
  "ODC-BY, terms of Common Crawl",
  tfds_name="c4/en:3.1.0",
  tfds_needs=_COMMON_CRAWL,
)
# Whole files instead of a fraction of documents, so that the other 964 need no download.
_C4_FILES = dataclasses.replace(
  _C4,
  name="c4_en_60_files",
  what="the first 60 of the 1,024 files of C4",
  gigabytes=48.55,
  size_from=f"60/1024 of {_C4.gigabytes} GB",
  files="c4/en/c4-train.000[0-5]?-of-01024.json.gz",
  address=_REALNEWSLIKE.address,
  tfds_name="",
)

_BOOKS = (Part(_WIKIPEDIA, ""), Part(_PG19, "BookCorpus"))
_NEWS = Part(_REALNEWSLIKE, "CC-News")
_REST = "Stories, and what the others lack"

CORPORA = {
  "wikipedia_books": Corpus(
    "Wikipedia and BookCorpus",
    16,
    files=_BOOKS,
    tfds=_BOOKS,
    config="configs/coco_lm_base.py",
    vocabulary_size=32_768,
    cased=False,
  ),
  "web_160gb": Corpus(
    "Wikipedia, BookCorpus, CC-News, OpenWebText and Stories",
    160,
    # 21.35 + 11.45 + 38.17 + 39.77 + 48.55 = 159.29 GB.
    files=(*_BOOKS, _NEWS, Part(_OPENWEBTEXT, ""), Part(_C4_FILES, _REST)),
    # 21.35 + 11.45 + 38.17 + 19.33 + 8.4 % of 828.59 = 159.90 GB.
    tfds=(*_BOOKS, _NEWS, Part(_WEBTEXTLIKE, "OpenWebText"), Part(_C4, _REST, keep=0.084)),
    config="configs/coco_lm_base_plus_plus.py",
    vocabulary_size=64_000,
    cased=True,
  ),
}
