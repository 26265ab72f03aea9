"""Citations of papers for model cards."""

import enum


class Paper(enum.StrEnum):
  """Citations of papers; the member's name in lower case is the prefix of the paper's recipe names."""

  COCO_LM = (
    "Meng, Xiong, Bajaj, Tiwary, Bennett, Han, Song. COCO-LM: Correcting and Contrasting Text "
    "Sequences for Language Model Pretraining. NeurIPS 2021."
  )
  AMOS = (
    "Meng, Xiong, Bajaj, Tiwary, Bennett, Han, Song. Pretraining Text Encoders with Adversarial "
    "Mixture of Training Signal Generators. ICLR 2022."
  )
  TACO = (
    "Fu, Zhou, Yang, Tang, Liu, Liu, Li. Contextual Representation Learning beyond Masked Language "
    "Modeling. ACL 2022."
  )
  ELECTRA = (
    "Clark, Luong, Le, Manning. ELECTRA: Pre-training Text Encoders as Discriminators Rather Than "
    "Generators. ICLR 2020."
  )
  MAE_LM = (
    "Meng, Krishnan, Wang, Wang, Mao, Fang, Ghazvininejad, Han, Zettlemoyer. Representation Deficiency in "
    "Masked Language Modeling. ICLR 2024."
  )
  METRO_LM = (
    "Bajaj et al. METRO: Efficient Denoising Pretraining of Large Scale Autoencoding Language Models with "
    "Model Generated Signals. 2022."
  )
  ROBERTA = "Liu et al. RoBERTa: A Robustly Optimized BERT Pretraining Approach. 2019."
  BERT = (
    "Devlin, Chang, Lee, Toutanova. BERT: Pre-training of Deep Bidirectional Transformers for Language "
    "Understanding. NAACL 2019."
  )
