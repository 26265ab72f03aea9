"""PyTorch programs that do the same work: `build` returns a module that maps a batch to a loss.

The methods are in plain PyTorch with fused attention, on a post-LN encoder; `build_stock` has the classes of
transformers, used in the common way, with scores for every position (of ModernBERT, those with labels).
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def t5_buckets(length: int, buckets: int = 32, max_distance: int = 128) -> torch.Tensor:
  """Returns T5's bucket of each (query, key) distance, by direction: [length, length] int64."""
  distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
  half, exact = buckets // 2, buckets // 4
  size = distance.abs()
  far = torch.log(size.clamp(min=1) / exact) / math.log(max_distance / exact) * (half - exact)
  far = (exact + far.long()).clamp(max=half - 1)
  return (distance > 0).long() * half + torch.where(size < exact, size, far)


class Layer(nn.Module):
  """x = LN(x + attention(x)); x = LN(x + mlp(x)), with dropout on both branches."""

  def __init__(self, width: int, heads: int, mlp: int) -> None:
    super().__init__()
    self.heads = heads
    self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.up, self.down = nn.Linear(width, mlp), nn.Linear(mlp, width)
    self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)

  def forward(self, x: torch.Tensor, bias: torch.Tensor | None, dropout: float) -> torch.Tensor:
    rows, length, width = x.shape
    parts = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
    query, key, value = parts.unbind(0)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
    attended = self.output(attended.transpose(1, 2).reshape(rows, length, width))
    x = self.first_norm(x + F.dropout(attended, dropout))
    return self.second_norm(x + F.dropout(self.down(F.gelu(self.up(x))), dropout))


class Encoder(nn.Module):
  """Layers over token vectors and positions; with `has_bias` all layers share a relative-position bias."""

  buckets: torch.Tensor

  def __init__(
    self, width: int, heads: int, mlp: int, layers: int, *, length: int, dropout: float, has_bias: bool
  ) -> None:
    super().__init__()
    self.layers = nn.ModuleList(Layer(width, heads, mlp) for _ in range(layers))
    self.relative = nn.Embedding(32, heads) if has_bias else None
    self.position = nn.Embedding(length, width)
    self.norm, self.dropout = nn.LayerNorm(width), dropout
    self.register_buffer("buckets", t5_buckets(length))

  def forward(
    self, vectors: torch.Tensor, *, taps: tuple[int, ...] = (), dropout: float | None = None
  ) -> list[torch.Tensor]:
    """Returns the last layer's output, or those of layers `taps` (from 1), with gradients cut in between."""
    dropout, length = self.dropout if dropout is None else dropout, vectors.shape[1]
    x = F.dropout(self.norm(vectors + self.position.weight[:length]), dropout)
    bias = None
    if self.relative is not None:
      bias = self.relative(self.buckets[:length, :length]).permute(2, 0, 1)[None].to(x.dtype)
    tapped = []
    for number, layer in enumerate(self.layers, 1):
      x = layer(x, bias, dropout)
      if number in taps:
        tapped.append(x)
        x = x.detach()
    return tapped if taps else [x]


class Transform(nn.Module):
  """Dense, GELU, LayerNorm: the transform before vocabulary scores."""

  def __init__(self, width: int) -> None:
    super().__init__()
    self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return self.norm(F.gelu(self.dense(x)))


class LookedUp(torch.autograd.Function):
  """Looks up the row with the largest score; the scores get the gradient of scores @ table."""

  @staticmethod
  def forward(ctx, scores: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    chosen = scores.argmax(-1)
    ctx.save_for_backward(chosen, table)
    return table[chosen]

  @staticmethod
  def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    chosen, table = ctx.saved_tensors
    flat = grad.reshape(-1, grad.shape[-1])
    return grad @ table.t(), torch.zeros_like(table).index_add_(0, chosen.reshape(-1), flat)


class Reversed(torch.autograd.Function):
  """The identity with a reversed gradient."""

  @staticmethod
  def forward(ctx, x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)

  @staticmethod
  def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
    return -grad


def take(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
  """Returns the vectors of x [rows, length, width] at `places` [rows, places]: [rows, places, width]."""
  return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def gumbel(like: torch.Tensor) -> torch.Tensor:
  """Returns float32 standard Gumbel noise in the shape of a tensor."""
  return -torch.empty_like(like, dtype=torch.float32).exponential_().log()


class Method(nn.Module):
  """Shared by the methods: token table, encoder, masked-LM head, loss over gathered positions."""

  def __init__(self, config) -> None:
    super().__init__()
    model, sizes = config.model, config.generator
    width, vocab = model.hidden_size, model.vocab_size
    options = {"length": config.data.length, "has_bias": model.relative_position != "none"}
    self.table = nn.Embedding(vocab, width)
    nn.init.normal_(self.table.weight, std=0.02)
    shape = (width, model.num_heads, model.mlp_size, model.num_layers)
    self.encoder = Encoder(*shape, dropout=model.dropout, **options)
    self.bias = nn.Parameter(torch.zeros(vocab))
    has_generator = config.corruption.kind == "generator"
    narrow = (sizes.hidden_size or width) if has_generator else width
    self.transform = Transform(narrow)
    self.projection = nn.Linear(width, narrow) if narrow != width else None
    if has_generator:
      shape = (narrow, sizes.num_heads or model.num_heads, sizes.mlp_size or model.mlp_size, sizes.num_layers)
      dropout = 0.0 if sizes.sampling_dropout == "zero" else model.dropout
      self.generator = Encoder(*shape, dropout=dropout, **options)
      self.rtd, self.rtd_weight = nn.Linear(width, 1), config.objectives.rtd.weight
      # Replacements are sampled in a second pass of the generator, without dropout.
      self.samples_again = sizes.sampling_dropout == "eval" and model.dropout > 0
      self.taps = tuple(sizes.mlm_layers)  # generator layers with a head (AMOS)

  def scores(self, hidden: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Returns the vocabulary scores of gathered positions."""
    return F.linear(hidden, self.table.weight, bias)

  def generated(self, ids: torch.Tensor, **options) -> list[torch.Tensor]:
    """Returns the generator's hidden states after the layers `taps`, or after the last layer."""
    vectors = self.table(ids)
    return self.generator(vectors if self.projection is None else self.projection(vectors), **options)

  def generator_scores(self, hidden: torch.Tensor) -> torch.Tensor:
    """Returns the generator's vocabulary scores; a narrow generator projects its states or the table."""
    hidden = self.transform(hidden)
    if self.projection is None:
      return self.scores(hidden, self.bias)
    (narrow, wide), count = self.projection.weight.shape, hidden[..., 0].numel()
    if count * wide < (wide + count) * narrow:  # the projection's bias adds the same to every token's score
      return self.scores(hidden @ self.projection.weight, self.bias)
    return F.linear(hidden, self.projection(self.table.weight), self.bias)

  def masked_loss(self, scores: torch.Tensor, batch: dict) -> torch.Tensor:
    """Returns the mean cross-entropy of the masked tokens."""
    return F.cross_entropy(scores.flatten(0, 1).float(), batch["labels"].flatten())


class MaskedLM(Method):
  """Masked LM as in BERT and RoBERTa, with scores at masked positions only."""

  def forward(self, batch: dict) -> torch.Tensor:
    hidden = self.encoder(self.table(batch["masked"]))[-1]
    scores = self.scores(self.transform(take(hidden, batch["places"])), self.bias)
    return self.masked_loss(scores, batch)


class TokenAlignment(Method):
  """TACO: the masked-LM loss, and a contrast of each token's context vector with a neighbour's."""

  def forward(self, batch: dict) -> torch.Tensor:
    vectors = self.table(batch["masked"])
    hidden = self.encoder(vectors)[-1]
    scores = self.scores(self.transform(take(hidden, batch["places"])), self.bias)
    context = F.normalize((hidden - vectors).float(), dim=-1).flatten(0, 1)
    near = (context * context[batch["near"]]).sum(-1, keepdim=True)
    others = torch.einsum("nh,nkh->nk", context, context[batch["others"]])
    similar = torch.cat([near, others], 1) / 0.07
    return self.masked_loss(scores, batch) + (similar.logsumexp(1) - similar[:, 0]).mean()


class Replaced(Method):
  """ELECTRA: detects the generator's samples among the tokens of all positions."""

  def replaced(self, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids with the generator's samples, and the generator's loss."""
    ids, places = batch["ids"], batch["places"]
    masked = batch["masked"]
    scores = self.generator_scores(take(self.generated(masked)[-1], places))
    loss = self.masked_loss(scores, batch)
    with torch.no_grad():
      if self.samples_again:
        scores = self.generator_scores(take(self.generated(masked, dropout=0.0)[-1], places))
      sampled = (scores.float() + gumbel(scores)).argmax(-1)
    return ids.scatter(1, places, sampled), loss

  def detected(self, hidden: torch.Tensor, original: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weighted RTD loss and its logits, which are positive for 'original'."""
    logits = self.rtd(hidden).squeeze(-1).float()
    return self.rtd_weight * F.binary_cross_entropy_with_logits(logits, original.float()), logits

  def forward(self, batch: dict) -> torch.Tensor:
    ids, loss = self.replaced(batch)
    hidden = self.encoder(self.table(ids))[-1]
    return loss + self.detected(hidden, ids == batch["ids"])[0]


class Corrected(Replaced):
  """COCO-LM: ELECTRA's losses, corrective language modeling with copying, and contrast with a crop."""

  def __init__(self, config) -> None:
    super().__init__(config)
    self.clm_bias = nn.Parameter(torch.zeros(config.model.vocab_size))

  def forward(self, batch: dict) -> torch.Tensor:
    ids, loss = self.replaced(batch)
    places, original = batch["places"], ids == batch["ids"]
    hidden = self.encoder(self.table(ids))[-1]
    detection, logits = self.detected(hidden, original)
    token_log = -F.cross_entropy(
      self.scores(take(hidden, places), self.clm_bias).flatten(0, 1).float(),
      batch["labels"].flatten(),
      reduction="none",
    ).view_as(places)
    copied, kept = logits.gather(1, places).detach(), original.gather(1, places)
    written = F.logsigmoid(-copied) + token_log
    written = torch.where(kept, torch.logaddexp(F.logsigmoid(copied), written), written)
    crop = self.encoder(self.table(batch["crop"]))[-1]
    pair = F.normalize(torch.cat([hidden[:, 0], crop[:, 0]]).float(), dim=-1)
    similar = (pair @ pair.t()).masked_fill(torch.eye(len(pair), dtype=torch.bool, device=pair.device), -1e9)
    other = (torch.arange(len(pair), device=pair.device) + len(pair) // 2) % len(pair)
    return loss + detection - written.mean() + F.cross_entropy(similar, other)


class Mixed(Replaced):
  """AMOS in PyTorch, a peer: samples from a Gumbel-softmax mixture of heads, with gradient reversal."""

  def __init__(self, config) -> None:
    super().__init__(config)
    self.mixture = nn.Linear(config.model.hidden_size, 1, bias=False)

  def forward(self, batch: dict) -> torch.Tensor:
    ids, places = batch["ids"], batch["places"]
    found = [take(x, places) for x in self.generated(batch["masked"], taps=self.taps)]
    scores = [self.generator_scores(x) for x in found]
    loss = sum(self.masked_loss(each, batch) for each in scores)
    weights = torch.cat([self.mixture(x) for x in found], -1).float().softmax(-1)
    mixed = sum(weights[..., n : n + 1] * each.detach() for n, each in enumerate(scores))
    assert isinstance(mixed, torch.Tensor)  # not the 0 of no head
    soft = ((mixed.float().log_softmax(-1) + gumbel(mixed)) / 0.3).softmax(-1)
    soft = Reversed.apply(soft).to(self.table.weight.dtype)
    replaced = ids.scatter(1, places, soft.argmax(-1))
    vectors = self.table(replaced)
    rows = LookedUp.apply(soft, self.table.weight).to(vectors.dtype)
    vectors = vectors.scatter(1, places[..., None].expand(-1, -1, vectors.shape[-1]), rows)
    return loss + self.detected(self.encoder(vectors)[-1], replaced == ids)[0]


def build(config) -> Method:
  """Returns the PyTorch model that does the work of a recipe, chosen by the config's objectives."""
  if config.corruption.kind != "generator":
    return (TokenAlignment if config.objectives.taco.weight else MaskedLM)(config)
  if config.generator.mlm_layers:
    return Mixed(config)
  return (Corrected if config.objectives.clm.weight else Replaced)(config)


def _fields(config, width: int, heads: int) -> dict:
  model = config.model
  return {
    "vocab_size": model.vocab_size,
    "hidden_size": width,
    "num_hidden_layers": model.num_layers,
    "num_attention_heads": heads,
    "intermediate_size": 4 * width,
    "max_position_embeddings": max(512, config.data.length),
    "hidden_dropout_prob": model.dropout,
    "attention_probs_dropout_prob": model.attention_dropout,
    "attn_implementation": "sdpa",
  }


class Bert(nn.Module):
  """Hugging Face's BertForMaskedLM with a loss at masked tokens, for comparison."""

  def __init__(self, config) -> None:
    super().__init__()
    from transformers import BertConfig, BertForMaskedLM

    self.model = BertForMaskedLM(
      BertConfig(**_fields(config, config.model.hidden_size, config.model.num_heads))
    )

  def forward(self, batch: dict) -> torch.Tensor:
    return self.model(input_ids=batch["masked"], labels=batch["sparse_labels"]).loss


class Electra(nn.Module):
  """Hugging Face's ELECTRA for comparison: a generator of a third of the width, with tied token tables."""

  def __init__(self, config) -> None:
    super().__init__()
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    width = config.model.hidden_size
    narrow = max(64, width // 3 // 64 * 64)
    table = {"embedding_size": width}
    self.generator = ElectraForMaskedLM(ElectraConfig(**_fields(config, narrow, narrow // 64), **table))
    self.model = ElectraForPreTraining(
      ElectraConfig(**_fields(config, width, config.model.num_heads), **table)
    )
    self.generator.electra.embeddings = self.model.electra.embeddings
    self.generator.tie_weights()

  def forward(self, batch: dict) -> torch.Tensor:
    made = self.generator(input_ids=batch["masked"], labels=batch["sparse_labels"])
    with torch.no_grad():
      scores = take(made.logits, batch["places"])
      ids = batch["ids"].scatter(1, batch["places"], (scores.float() + gumbel(scores)).argmax(-1))
    return made.loss + 50 * self.model(input_ids=ids, labels=(ids != batch["ids"]).long()).loss


class ModernBert(nn.Module):
  """ModernBertForMaskedLM of the recipe's sizes; it scores the positions with labels alone, as ours does."""

  def __init__(self, config, *, has_flash: bool = False) -> None:
    super().__init__()
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    model = config.model
    sizes = {
      "sparse_prediction": True,
      "vocab_size": model.vocab_size,
      "hidden_size": model.hidden_size,
      "intermediate_size": model.mlp_size,
      "num_hidden_layers": model.num_layers,
      "num_attention_heads": model.num_heads,
      "global_attn_every_n_layers": model.global_every,
      "local_attention": model.window,
      "pad_token_id": 1,
      "bos_token_id": 0,
      "eos_token_id": 2,
      "cls_token_id": 0,
      "sep_token_id": 2,
    }
    attention = "flash_attention_2" if has_flash else "sdpa"
    self.model = ModernBertForMaskedLM(ModernBertConfig(**sizes, attn_implementation=attention))  # pyright: ignore[reportCallIssue] (its `**kwargs` take it)

  def forward(self, batch: dict) -> torch.Tensor:
    ids, labels = batch["masked"], batch["sparse_labels"]
    arguments = batch.get("arguments", {"attention_mask": torch.ones_like(ids)})
    return self.model(input_ids=ids, labels=labels, **arguments).loss


class Deberta(nn.Module):
  """DebertaV2ForMaskedLM of the recipe's sizes, which transformers computes with plain products alone."""

  def __init__(self, config) -> None:
    super().__init__()
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    model = config.model
    fields = _fields(config, model.hidden_size, model.num_heads)
    fields |= {"relative_attention": True, "share_att_key": True, "pos_att_type": ["p2c", "c2p"]}
    fields |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "attn_implementation": "eager"}
    fields |= {"position_buckets": model.relative_buckets // 2, "type_vocab_size": 0}
    self.model = DebertaV2ForMaskedLM(DebertaV2Config(**fields))

  def forward(self, batch: dict) -> torch.Tensor:
    ids, labels = batch["masked"], batch["sparse_labels"]
    return self.model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss


def build_stock(config, *, has_flash: bool = False) -> nn.Module:
  """Returns the stock model that does the work of a recipe, by its corruption and backbone.

  `has_flash`: ModernBERT has FlashAttention 2 instead of PyTorch's own attention.
  """
  if config.corruption.kind == "generator":
    return Electra(config)
  if config.model.relative_position == "disentangled":
    return Deberta(config)
  return ModernBert(config, has_flash=has_flash) if config.model.position == "rope" else Bert(config)
