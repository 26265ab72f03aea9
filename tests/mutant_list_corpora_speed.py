"""Faults of remembered words and of bad input files. Columns as in `mutant_list.py`."""

_BINARY = "tests/data/test_binary_files.py"
_PREPARE = "tests/data/prepare/test_bad_input.py"
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
  (
    "data/binary_files.py",
    _BINARY,
    [
      (
        "numbers between texts are no sign of binary data",
        " and not _NUL_RUN.search(start):",
        ":",
        "test_a_run_of_nul_bytes_is_refused_wherever_it_is",
      ),
      ("a colour of a log is binary data", r"\v\f\r\x1b", r"\v\f\r", "test_text_passes"),
      (
        "twice as many control characters are text",
        "_MOST = 100",
        "_MOST = 50",
        "test_more_than_one_control_character_in_a_hundred_bytes_is_refused",
      ),
      ("the other half of UTF-16", "if 2 * even > nul", "if 2 * even < nul", "test_utf16_is_named"),
    ],
  ),
  (
    "data/sources.py",
    _BINARY,
    [
      (
        "binary data is found only when its unit is packed",
        "    text_files.check(path)",
        "    pass",
        "test_binary_data_is_refused_when_a_source_is_planned",
      ),
    ],
  ),
  (
    "data/text_files.py",
    _BINARY,
    [
      (
        "an empty compressed file has no documents",
        "if os.path.getsize(path) == 0 and unpacked_name(path) != path.lower():",
        "if False:",
        "test_an_empty_compressed_file_is_refused",
      ),
    ],
  ),
  (
    "data/prepare/preparation.py",
    _PREPARE,
    [
      (
        "files without documents are not counted",
        'int(not count["documents_found"])',
        "0",
        "test_a_file_without_documents_among_others_is_named",
      ),
    ],
  ),
  (
    "data/prepare/summary.py",
    _PREPARE,
    [
      (
        "the files with the fewest repairs are named",
        "-sum(file[1].values())",
        "sum(file[1].values())",
        "test_the_files_with_the_most_repairs_are_named",
      ),
      (
        "no word of unknown letters",
        "if unknown > MOST_UNKNOWN:",
        "if False:",
        "test_a_text_in_letters_that_the_vocabulary_lacks_is_warned_of",
      ),
    ],
  ),
]
