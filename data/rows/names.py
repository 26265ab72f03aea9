"""Common names of the columns of texts and labels in published data sets."""

# The likeliest first; case does not count.
PAIRS = (
  ("sentence1", "sentence2"),
  ("premise", "hypothesis"),
  ("question1", "question2"),
  ("text1", "text2"),
  ("text_a", "text_b"),
  ("query", "passage"),
  ("question", "sentence"),
  ("text", "text_pair"),
)
LABELS = ("label", "labels", "class", "category", "categories", "target", "score", "rating", "sentiment")
LABELS += ("tag", "tags", "ner_tags", "intent", "topic", "gold_label")
