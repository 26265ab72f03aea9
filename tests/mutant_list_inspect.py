"""Faults of the look at prepared text. Columns as in `mutant_list.py`."""

_PIECES = "tests/data/inspect/test_pieces.py"
_COMMAND = "tests/data/inspect/test_inspect.py"

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/inspect/pieces.py",
    _PIECES,
    [
      (
        "a mark of its own is no piece of a word",
        "return np.stack([starts - lead, starts, stops], axis=1)",
        "return np.stack([starts, starts, stops], axis=1)",
        "test_words_pieces_and_letters_of_each_script",
      ),
      (
        "scripts without spaces run into each other",
        "joined &= ~(unspaced & (self.script[ids] != self.script[before]))",
        "joined &= True",
        "test_words_pieces_and_letters_of_each_script",
      ),
      (
        "an unknown piece is counted twice",
        "0 if is_unknown else len(text), sum",
        "len(text), sum",
        "test_totals_have_unknown_pieces_and_no_special_ones",
      ),
      (
        "the script of a word that begins unknown is unknown",
        "return self.script[ids[start + is_unknown]]",
        "return self.script[ids[start]]",
        "test_words_pieces_and_letters_of_each_script",
      ),
      (
        "common words come before those that take more pieces",
        "key=lambda item: (-item[1] * (len(item[0]) - 1), item[0])",
        "key=lambda item: (-item[1], item[0])",
        "test_words_that_take_most_pieces_come_first",
      ),
    ],
  ),
  (
    "data/inspect/scripts.py",
    _PIECES,
    [
      (
        "vowel signs are no letters",
        'if category not in "LM":',
        'if category not in "L":',
        "test_words_pieces_and_letters_of_each_script",
      ),
    ],
  ),
  (
    "data/inspect/look.py",
    _COMMAND,
    [
      (
        "every record that has a copy counts as one",
        "copies=known.size - np.unique(known).size,",
        "copies=known.size - (np.unique(known, return_counts=True)[1] == 1).sum(),",
        "test_sizes_copies_and_leaks_are_those_of_the_text",
      ),
      (
        "leaks are counted among training records",
        "leaked=int(np.isin(np.array(heldout, np.uint64), known).sum()),",
        "leaked=int(np.isin(known, np.array(heldout, np.uint64)).sum()),",
        "test_sizes_copies_and_leaks_are_those_of_the_text",
      ),
      (
        "every batch of a sample is the first",
        "batch = source.batch(step, _BATCH, rows",
        "batch = source.batch(0, _BATCH, rows",
        "test_a_sample_is_named_and_none_is_in_it_twice",
      ),
    ],
  ),
  (
    "data/inspect/page.py",
    _COMMAND,
    [
      (
        "a bar has the number below it too",
        "np.histogram(values, edges + 0.5)",
        "np.histogram(values, edges)",
        "test_a_histogram_is_the_shares_between_whole_numbers",
      ),
    ],
  ),
]
