"""A fine-tuned model opened to answer rows: `finetune.predict` and `finetune.evaluate`.

`model` opens a saved model of any kind; `texts`, `tags`, `spans` and `questions` are how rows of a kind
become inputs, and outputs answers.
"""
