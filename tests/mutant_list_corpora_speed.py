"""Faults of remembered words and of bad input files. Columns as in `mutant_list.py`."""

_REMEMBERED = "tests/data/vocabulary/test_remembered.py"
_ANY = "test_any_text_has_the_ids_of_the_plain_way"
_ENDS = "test_words_whose_end_counts_for_the_next_word_are_not_looked_up"
_MARK = "test_a_mark_of_a_space_in_the_text_is_not_lost"
_MODELS = "test_models_that_may_look_over_a_space_are_not_split"
_RULES = "test_rules_that_read_a_space_or_write_its_mark_are_found"

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/vocabulary/remembered.py",
    _REMEMBERED,
    [
      (
        "words that touch others are remembered",
        "if len(word) <= MAX_LETTERS and not touches_others(word)]",
        "if len(word) <= MAX_LETTERS]",
        "test_words_that_touch_others_or_are_long_are_never_remembered",
      ),
      (
        "long words are remembered",
        "if len(word) <= MAX_LETTERS and not",
        "if not",
        "test_words_that_touch_others_or_are_long_are_never_remembered",
      ),
      (
        "the memory grows without end",
        "while len(remembered) > MAX_WORDS:",
        "while False:",
        "test_a_full_memory_keeps_the_first_words",
      ),
      ("mark of a space in a word", "return _SPACE in word", "return False", _MARK),
      ("unigram models are split", "training.model_type == _BPE", "True", _MODELS),
      (
        "pieces may have the mark inside",
        "not any(_SPACE in piece[1:] for piece in pieces)",
        "True",
        _MODELS,
      ),
      (
        "user-defined pieces are split",
        "{*pieces.values()} <= {_NORMAL, _UNKNOWN, _CONTROL}",
        "True",
        _MODELS,
      ),
      ("texts without a dummy space are split", "and rules.add_dummy_prefix", "and True", _MODELS),
      ("rules that read a space", "return bool(reads.any()) or", "return", _RULES),
      ("rules that write the mark", " or _SPACE.encode() in table[4 + size :]", "", _RULES),
    ],
  ),
  (
    "data/vocabulary/official.py",
    _REMEMBERED,
    [
      (
        "a clitic after an apostrophe at the end of a word",
        "return _SPACE in word or word.rstrip().endswith(_APOSTROPHES)",
        "return _SPACE in word",
        _ANY,
      ),
      ("curly apostrophes", 'tuple("\'‘’´")', 'tuple("\'")', _ENDS),
    ],
  ),
]
