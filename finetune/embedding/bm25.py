"""Searches a corpus by words with BM25, the baseline beside every retrieval figure."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

NOTE = "BM25 is bm25s' (lucene, k1=1.5, b=0.75; words in lower case without English stop words, unstemmed)."


def search(passages: Iterable[str], queries: Sequence[str], most: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns scores [queries, most] float32, largest first, and numbers of passages; -inf: no common word.

  `most` is at most the number of passages.
  """
  import bm25s  # here: it starts JAX's devices

  logging.getLogger("bm25s").setLevel(logging.WARNING)
  tokenizer, no_empty = bm25s.tokenization.Tokenizer(stopwords="en"), {"allow_empty": False}
  texts: Any = passages  # the annotation of bm25s is a list, but a list of all texts would fill the memory
  # Arrays take an eighth of the memory of lists.
  ids = [np.asarray(words, np.int32) for words in tokenizer.streaming_tokenize(texts, **no_empty)]
  words = list(tokenizer.streaming_tokenize(list(queries), update_vocab=False, **no_empty))
  scores, numbers = np.full((len(words), most), -np.inf, np.float32), np.zeros((len(words), most), np.int64)
  asked = [row for row, of_query in enumerate(words) if of_query]
  if asked:
    index = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
    index.index((ids, tokenizer.get_vocab_dict()), create_empty_token=False, show_progress=False)
    shown = {"backend_selection": "numpy", "show_progress": False}
    numbers[asked], scores[asked] = index.retrieve([words[row] for row in asked], k=most, **shown)
  return np.where(scores > 0, scores, -np.inf), numbers
