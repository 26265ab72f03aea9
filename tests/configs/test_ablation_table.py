"""docs/guides/ablations.md against the tables of rows that it is made from."""

from configs.ablations import coco_lm, table


def test_the_document_is_up_to_date():
  assert table.PATH.read_text(encoding="utf-8") == table.render(), "run `python -m configs.ablations.table`"


def test_a_row_says_its_fields_what_the_user_must_give_and_the_papers_result():
  text = table.render()
  for family, module in table.FAMILIES.items():
    section = text.partition(f"configs/ablations/{family}.py:")[2].partition("\n## ")[0]
    assert [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")] == list(
      module.ROWS
    )
  expected = (
    "| `no_relpos` | `coco_lm_base` | `model.relative_position=none` | absolute positions only | "
    "MNLI 88.2/87.7, average 87.6 |"
  )
  assert expected in text
  (line,) = [line for line in text.splitlines() if line.startswith("| `converged_aux` |")]
  assert coco_lm.ROWS["converged_aux"].required and "**`generator.init_from`**" in line
