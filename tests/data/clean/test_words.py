"""Words of documents, with spaces and without."""

from data.clean import words


def test_words_are_cut_at_spaces_and_line_ends():
  assert words.of(["a bc,", "d\te"]) == (["a", "bc,", "d", "e"], 1)
  assert words.of([]) == ([], 1)


def test_two_characters_of_a_script_without_spaces_are_a_word():
  found = words.of(["我们是学生。"])
  assert found.tokens == ["我", "们", "是", "学", "生", "。"]
  assert (found.width, found.number) == (2, 3)


def test_the_greater_part_of_a_mixed_text_decides():
  assert words.of(["four words and one 字"]) == (["four", "words", "and", "one", "字"], 1)
  assert words.of(["文字 word"]).width == 2


def test_thai_and_kana_have_no_spaces_and_korean_has():
  assert words.of(["ภาษาไทย"]).width == words.of(["ひらがな"]).width == 2
  assert words.of(["나는 학생 입니다"]) == (["나는", "학생", "입니다"], 1)
