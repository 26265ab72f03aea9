"""Registers corpora, packed text and prepared records as seqio Tasks, for notebooks and other trainers.

  import data.tasks, seqio

  task = seqio.get_mixture_or_task("wikipedia_books_packed_512")
  data.tasks.register_packed("mine_packed_128", "corpus/*.txt", "VOCABULARY_DIR", length=128)
  data.tasks.register_prepared("mine", "prepared/mine")

Importing this package registers `<corpus>_packed_<length>` for the corpora of `data.seqio_tasks`. Their data
and vocabularies must exist only when a Task is read. Only this folder and `data.seqio_tasks` import seqio.
"""

from data.tasks.blocks import FEATURE, BlocksTask, DirectoryVocabulary
from data.tasks.packed import register_corpora, register_packed
from data.tasks.prepared import EncoderConverter, PreparedTask, register_prepared

__all__ = [
  "FEATURE",
  "BlocksTask",
  "DirectoryVocabulary",
  "EncoderConverter",
  "PreparedTask",
  "register_packed",
  "register_prepared",
]

register_corpora()
