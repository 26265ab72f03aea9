"""All fields of a pretraining config, with units, sources and defaults; recipes change some of them.

Usage: not run directly. A recipe does `config = base.get_config()`, sets fields and returns it.
Sources are named as in the papers: COCO-LM (NeurIPS 2021), AMOS (ICLR 2022), TACO (ACL 2022),
ELECTRA (ICLR 2020), and "official" is the released code of the paper in question.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the default config, locked: a base-sized encoder with all objectives off.

  Every field has a value of its final type, so that the command line can override every field.
  """
  config = ConfigDict()
  config.recipe = "base"  # name of the recipe; the default workdir is runs/<config file name>
  config.seed = 0  # data order, initialisation, masks, samples and dropout are functions of it
  config.model = _model()
  config.corruption = _corruption()
  config.generator = _generator()
  config.objectives = _objectives()
  config.optimizer = _optimizer()
  config.data = _data()
  config.train = _train()
  config.mesh = ConfigDict(
    {
      "data": -1,  # devices that each take a share of the batch; -1: the rest
      "fsdp": 1,  # devices that share weights, gradients and moments; each holds a part
      "tensor": 1,  # devices that share the heads and the MLP of a layer
      "fsdp_across_slices": False,  # several TPU slices or GPU nodes: cut fsdp, not data, between them
    }
  )
  config.lock()
  return config


def _model() -> ConfigDict:
  return ConfigDict(
    {
      "vocab_size": 32_768,  # rows of the token table; COCO-LM section 4: uncased BPE
      "hidden_size": 768,  # width of a token's vector; COCO-LM table 6 (base)
      "num_layers": 12,  # of the encoder; COCO-LM table 6 (base)
      "num_heads": 12,  # of attention; each is hidden_size / num_heads wide
      "mlp_size": 3_072,  # inner width of a layer's MLP
      "max_length": 512,  # tokens: rows of the position table
      "embedding_size": 0,  # of the tables, which are projected to hidden_size (ELECTRA-small: 128); 0: that
      "num_kv_heads": 0,  # heads of keys and values, shared by groups of query heads; 0: num_heads
      "num_segments": 0,  # 0: no segment embeddings (COCO-LM, AMOS); 2: BERT, TACO, all ids 0
      "pair_segments": False,  # of tasks: the second text is segment 1 (BERT); pretraining has no pairs
      # Of attention, a bias: 't5' (the papers), 'official' (the released models); a vector: 'disentangled'
      # (DeBERTa); or 'none'.
      "relative_position": "t5",
      # Groups of distances that share a bias; COCO-LM table 6. In DeBERTa twice its `position_buckets`.
      "relative_buckets": 32,
      "relative_max_distance": 128,  # tokens; all larger distances share a bucket
      "position": "learned",  # of tokens: 'learned' (a table), 'rope' (rotary; ModernBERT), 'none'
      "rope_theta": 160_000.0,  # base of rotary frequencies in layers that read keys at any distance
      "rope_theta_local": 10_000.0,  # the same in layers with a window
      "window": 128,  # tokens; a layer with a window reads keys at most half of it away, on both sides
      "global_every": 1,  # layers 0, n, 2n, ... read keys at any distance, the others in the window
      "global_layers": (),  # those layers by number, from 0, where they are not regular; (): global_every
      "norm_placement": "post",  # 'post' (after the sum; BERT), 'pre' (before each branch; ModernBERT)
      "norm": "layernorm",  # 'layernorm', 'rmsnorm' (UltraBERT, EuroBERT)
      "norm_bias": True,  # of norms, and of the dense layer in a masked-LM head; False in ModernBERT
      "embedding_norm": True,  # on embeddings; False with 'pre': the first layer has its own instead
      "layer_norm_eps": 1e-5,  # added to a norm's variance; fairseq; 1e-12 in BERT and TACO
      "mlp": "plain",  # 'plain': down(act(up x)); 'gated': down(act(gate x) * up x) (GeGLU, SwiGLU)
      "activation": "gelu",  # of MLP and heads: 'gelu' (exact), 'silu'
      "attention_bias": True,  # of attention's four dense layers; False in ModernBERT
      "mlp_bias": True,  # of the MLP's dense layers; False in ModernBERT
      "dropout": 0.1,  # of hidden states; COCO-LM table 6
      "dropout_at": "all",  # 'all' (embeddings and both branches), 'attention' (its output; ModernBERT)
      "attention_dropout": 0.1,  # of attention probabilities
      "init_stddev": 0.02,  # of initial weights; official init_bert_params
      "init": "normal",  # 'normal', 'megatron_cut' (cut at 2 deviations, output kernels / sqrt(2 layers))
      "dtype": "auto",  # of the computation: 'float32', 'bfloat16', 'auto' (float32 on CPU, else bfloat16)
      # How attention is computed: 'plain', 'by_rows' (CPUs), 'pallas_tpu' (kernels for TPUs), in bfloat16 on
      # NVIDIA GPUs 'triton', 'auto' (the fastest there is, else plain).
      "attention": "auto",
      # What the backward pass recomputes: 'none'; 'cheap': everything except matrix products and attention
      # outputs, which halves memory in the same time; 'full': whole layers, for the least memory and 1/3 more
      # time.
      "remat": "cheap",
      # Layers unrolled in each iteration of the loop over layers. 0: one; on TPUs and GPUs all, unless fsdp
      # cuts weights: a loop there copies the stored activations (a tenth of a step), but compiles faster.
      "scan_unroll": 0,
      "vocab_chunk_rows": 4_096,  # most rows of vocabulary logits that exist at once on one device
      "freeze_embeddings": "none",  # token table not trained: 'none', 'random', 'checkpoint' (TACO figure 4)
      "freeze_embeddings_from": "",  # checkpoint directory for 'checkpoint'
    }
  )


def _corruption() -> ConfigDict:
  return ConfigDict(
    {
      "kind": "mask",  # of damage: 'mask' ([MASK] and the mix below), 'random' (uniform tokens), 'generator'
      # How many: 'count' (probabilistic rounding), 'bernoulli', 'electra_google', 'deberta'.
      "mask_rule": "count",
      "mask_rate": 0.15,  # fraction of tokens that are chosen
      # Instead, rates that change: ((0.0, 0.3), (0.8, 0.15)) is 0.3, and 0.15 from 80 % of the steps on.
      "mask_rates": (),
      "eval_mask_rate": 0.0,  # of held-out rows, so that runs can be compared; 0: as in training
      "whole_words": False,  # choose words and mask all their tokens (fairseq); also of held-out rows
      "mask_special": "all",  # which special tokens may be chosen: 'all', 'sep_only', 'none'
      "mask_token_rate": 1.0,  # fraction of the chosen that become [MASK] ...
      "random_token_rate": 0.0,  # ... a random token (not 'electra_google'); the rest keep their token
      "random_token_from": "non_special",  # random tokens: 'non_special' (fairseq), 'all' (Hugging Face)
    }
  )


def _generator() -> ConfigDict:
  return ConfigDict(
    {
      "num_layers": 4,  # of the generator; COCO-LM section 4; 6 for large++
      "hidden_size": 0,  # width of a token's vector; 0: as the encoder
      "mlp_size": 0,  # inner width of a layer's MLP; 0: as the encoder
      "num_heads": 0,  # of attention; 0: as the encoder
      "mlm_layers": (),  # layers with a masked-LM loss, from 1; (): the last
      "separate_layers": (),  # depths of separate generators, one trunk each; (): one trunk
      # With the encoder: 'tokens' (paper), 'all' (+ positions, norm), 'none', 'gdes' (tokens, and the encoder
      # trains a difference to the generator's table; DeBERTaV3).
      "share_embeddings": "all",
      # If widths differ: 'table' (MC-BERT), 'embeddings' (Google ELECTRA), 'none' (a token table of its own).
      "projection": "table",
      "sampling_dropout": "eval",  # 'eval' (second pass without dropout), 'train', 'zero' (no dropout at all)
      "temperature": 1.0,  # of the softmax that tokens are sampled from, of a mixture of heads too
      # Instead, after the fraction u of all steps: temperature + (temperature_start - temperature)
      # exp(-u / temperature_decay); Fast-ELECTRA.
      "temperature_start": 0.0,  # at step 0; 0: always `temperature`
      "temperature_decay": 0.0,  # fraction of the steps in which the difference falls to 1 / e
      "disallow_correct": False,  # never sample the original token (Google ELECTRA's option)
      "detach_blocks": True,  # AMOS section 3: no gradient from a block of layers to the one below
      "mixture": "none",  # of heads: 'none', 'adversarial', 'uniform', 'random_layer', 'schedule', 'fixed'
      "mixture_weights": (),  # of the heads, for 'fixed'
      "gumbel_temperature": 0.3,  # of the Gumbel softmax over heads; AMOS table 3
      "reversal_multiplier": -1.0,  # of the encoder's gradient to the mixture; official disc_grad_mul
      "adv_mlm_multiplier": 0.0,  # of the same gradient into the heads' logits; AMOS table 4 uses 0.1
      "loss_weight": 1.0,  # of the sum of the heads' masked-LM losses
      "init_from": "",  # checkpoint directory: start (or stay) with this generator
      "frozen": False,  # the generator is not trained and keeps a token table of its own
    }
  )


def _objectives() -> ConfigDict:
  return ConfigDict(
    {
      # Weight 0 switches an objective off: no head, no pass, no metric.
      "mlm": {
        "weight": 0.0,  # of masked LM; BERT, RoBERTa
        "head": "transform",  # 'transform' before the token table (BERT), 'table': one of its own (EuroBERT)
        "positions": "masked",  # that have a loss: 'masked', 'all' (TACO's MLM+TP)
      },
      "rtd": {
        "weight": 0.0,  # of replaced token detection; 50 in ELECTRA, COCO-LM and AMOS
        "head": "linear",  # layers: 'linear' (COCO-LM, AMOS), 'dense' (Google ELECTRA), 'context' (DeBERTa)
      },
      "clm": {
        "weight": 0.0,  # of corrective LM; COCO-LM section 3
        "form": "mixture",  # of the likelihood: 'mixture' (paper), 'weighted' (the posted code)
        "stop_gradient": True,  # on the copy probability inside this loss
        "copy": True,  # with the copy mechanism; False: plain cross-entropy of the LM head
      },
      "all_token": {"weight": 0.0},  # of the mixture's likelihood at every position; ELECTRA section 3.4
      "scl": {
        "weight": 0.0,  # of sequence contrast; COCO-LM section 3
        "crop_fraction": 0.9,  # of the tokens; above 1: a number of tokens; COCO-LM section 4
        "crop_add_cls": True,  # put [CLS] before the crop (official --add-span-cls)
        "temperature": 1.0,  # of the contrast's softmax; COCO-LM section 3
        "head": "cls",  # vector: 'cls' (paper: h of [CLS]), 'projection' (official: dense, gelu, norm)
        "projection_size": 0,  # width of head 'projection'; 0: hidden_size
        "group_size": 32,  # rows of the global batch that are contrasted with each other; 0: all
        "max_segments": 0,  # that are contrasted, the first of a row, with packing 'segments'; 0: whole rows
      },
      "taco": {
        "weight": 0.0,  # of token alignment contrast; TACO
        "anchors": "all",  # tokens that are contrasted: 'all', 'masked', 'unmasked'
        "window": 5,  # W, full odd window in tokens: positives at distance <= W // 2
        "num_negatives": 50,  # K, for each anchor
        "temperature": 0.07,  # of the contrast's softmax
        "group_size": 80,  # rows that negatives are drawn from; 0: all
      },
      "mae": {
        "weight": 0.0,  # of the masked autoencoder: the encoder reads no masked tokens; MAE-LM
        "decoder_layers": 4,  # of the decoder that predicts them, as wide as the encoder (official default)
        "decoder_positions": "own",  # that the decoder reads: 'own' table (or rotary), 'shared' (encoder's)
        "decoder_relative_position": False,  # a relative bias of its own, with the encoder's buckets
        "decoder_dropout": "zero",  # in the decoder: 'zero' (official), 'encoder' (the encoder's rates)
      },
    }
  )


def _optimizer() -> ConfigDict:
  return ConfigDict(
    {
      "learning_rate": 5e-4,  # peak; COCO-LM table 6 (base)
      # Of the rate: 'linear' (warm-up, decay), 'electra_google', 'constant', 'wsd' (warm-up, stable, decay).
      "schedule": "linear",
      "warmup_steps": 10_000,  # in which the rate rises from 0 to its peak
      "decay_steps": 0,  # of 'wsd': the last updates, in which the rate falls; 0: it never falls
      "decay_shape": "linear",  # of that fall, in 'wsd' alone: 'linear', 'one_minus_sqrt' (ModernBERT)
      "end_learning_rate": 0.0,  # that the rate falls to after the last step; 'constant' has none
      "adam_b1": 0.9,  # decay of the first moment
      "adam_b2": 0.98,  # decay of the second moment
      "adam_eps": 1e-6,  # added to the root of the second moment
      "adam_eps_placement": "uncorrected",  # moments: 'uncorrected' (fairseq, HF 4.6) or 'corrected' (optax)
      "adam_bias_correction": True,  # of both moments
      "weight_decay": 0.01,  # decoupled, times the learning rate
      "decay": "all",  # what decays: 'all' (fairseq), 'no_bias_norm' (HF, Google: not biases, not LayerNorm)
      "decay_scale": "rate",  # decay per update: times 'rate', or 'rate_over_peak' (ModernBERT: rate / peak)
      "clip_norm": 2.0,  # of the global gradient norm; 0: off
      "update_clipping": "none",  # 'stable_adamw': lowers the rate of arrays whose gradients grow suddenly
      "shard_update": False,  # ZeRO-1: devices along mesh.data share the state and its update
    }
  )


def _data() -> ConfigDict:
  return ConfigDict(
    {
      "source": "installed_docs",  # of the text; see `python -m data.prepare --help`
      # 'records': text is prepared first, and a run resumes at once; 'seqio': a Task or Mixture, source
      # 'seqio:NAME', is read during training, and again from its beginning when the run resumes.
      "feed": "records",
      "directory": "",  # prepared records; '': prepared/<source, vocabulary, packing, length>
      # Several prepared directories instead: 'DIR:RATE,DIR:RATE', rates of blocks in any scale; 'DIR,DIR': in
      # proportion to their records; 'seqio:NAME': the Tasks and rates of a Mixture. docs/guides/mixtures.md.
      "mixture": "",
      "temperature": 0.0,  # T: rates become rate**(1/T), more equal if T is above 1; 0: unchanged
      "stages": "",  # mixtures by training step instead: '0: DIR:RATE,DIR:RATE; 100000: DIR:RATE'
      "text_field": "",  # field or column with the text in JSON, Parquet or examples; '': 'text'
      "module": "",  # file or module to import, which registers seqio Tasks
      "tfds_directory": "",  # TFDS data_dir; '': its default
      "clean": "",  # cleaning steps, 'exact,language:en,near:0.8'; see `python -m data.prepare --help`
      "vocabulary": "",  # directory of a vocabulary; '': trained on the source with the fields below
      "vocabulary_kind": "sentencepiece",  # if one is trained: 'sentencepiece' (BPE), 'wordpiece'
      "vocabulary_cased": False,  # keep case
      "length": 512,  # tokens per example, [CLS] included
      # Of text into examples: 'complete', 'complete_doc', 'none', 'eos', 'concat', or 'segments', several
      # texts in a row that do not see each other.
      "packing": "complete",
      "fraction": 1.0,  # of the prepared training records that are used, drawn once (TACO table 2: 0.25)
      "workers": 0,  # processes of data.prepare; 0: one per core
    }
  )


def _train() -> ConfigDict:
  return ConfigDict(
    {
      "batch_size": 2_048,  # examples per update, over all devices and microbatches
      "microbatches": 1,  # gradient accumulation: parts of the batch that are computed one after another
      # Batch-size warm-up (ModernBERT): rows of the first batches, a multiple of a microbatch; 0: none.
      "batch_size_start": 0,
      "batch_warmup_steps": 0,  # updates in which batches grow to batch_size, one microbatch at a time
      "total_steps": 125_000,  # updates; the schedule ends there
      "init_from": "",  # checkpoint directory: start with its encoder, heads and generator, if they fit
      # If that model is smaller: 'tile' repeats its widths around their middles and its layers (ModernBERT).
      "init_grow": "",
      "log_every": 100,  # steps between lines of the log
      "eval_every": 5_000,  # steps; also at the start and the end
      "eval_batches": 16,  # batches of the same held-out examples each time; 0: no evaluation
      "checkpoint_every": 5_000,  # steps; also at the end
      "checkpoints_to_keep": 2,  # newest ones
      "checkpoint_steps": (),  # steps whose checkpoints are never removed
      "max_nonfinite_steps": 10,  # updates in a row that are not finite, before the run stops as diverged
      "spike_zscore": 0.0,  # standard deviations above earlier losses that make a spike; 0: off
      "spike_window": 0,  # number of earlier steps with which a loss is compared; 0: 100
      "spike_roll_back": False,  # at a spike: return to the last checkpoint and skip the batches since then
      "trackers": "",  # also gets the metrics: 'wandb'; '': none
      "probe_every": 0,  # steps between probes of the frozen encoder, also at the start and end; 0: never
      "probe_data": "",  # folder of annotated data for the probes; see `python -m pretrain.probe --help`
      "platform": "auto",  # 'auto': what JAX finds; 'cpu', 'gpu', 'tpu': an error on any other
      "multihost": False,  # call jax.distributed.initialize() first
      "peak_flops": 0.0,  # per device per second, for MFU; 0: from the table of known devices
    }
  )
