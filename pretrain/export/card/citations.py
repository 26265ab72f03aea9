"""Which papers a model card cites: those of the ideas that the config switches on, and that of the recipe."""

import re
from collections.abc import Mapping
from typing import Any

_CITATIONS = {
  "coco_lm": "Meng, Xiong, Bajaj, Tiwary, Bennett, Han, Song. COCO-LM: Correcting and Contrasting Text "
  "Sequences for Language Model Pretraining. NeurIPS 2021.",
  "amos": "Meng, Xiong, Bajaj, Tiwary, Bennett, Han, Song. Pretraining Text Encoders with Adversarial "
  "Mixture of Training Signal Generators. ICLR 2022.",
  "taco": "Fu, Zhou, Yang, Tang, Liu, Liu, Li. Contextual Representation Learning beyond Masked Language "
  "Modeling. ACL 2022.",
  "electra": "Clark, Luong, Le, Manning. ELECTRA: Pre-training Text Encoders as Discriminators Rather Than "
  "Generators. ICLR 2020.",
  "roberta": "Liu et al. RoBERTa: A Robustly Optimized BERT Pretraining Approach. 2019.",
  "bert": "Devlin, Chang, Lee, Toutanova. BERT: Pre-training of Deep Bidirectional Transformers for Language "
  "Understanding. NAACL 2019.",
}
# Objective of the config: the paper it is from.
_OF_OBJECTIVES = {
  "mlm": "bert",
  "rtd": "electra",
  "all_token": "electra",
  "clm": "coco_lm",
  "scl": "coco_lm",
  "taco": "taco",
}


def citations(config: Mapping[str, Any]) -> list[str]:
  """Papers to cite, each once.

  Args:
    config: of the checkpoint, as a dict. An imported one has no objective: its own paper is not known here.
  """
  found = {_OF_OBJECTIVES[name] for name, part in config["objectives"].items() if part["weight"]}
  if config["corruption"]["kind"] == "generator" and config["generator"]["mixture"] != "none":
    found.add("amos")
  # A row of an ablation may have lost what its paper is known by.
  found |= {name for name in _CITATIONS if re.match(rf"{name}(?![a-z])", config["recipe"])}
  return [citation for name, citation in _CITATIONS.items() if name in found]
