"""Dense, MoD, X-MoD and MoE language models in plain PyTorch, written to be read.

One sequence goes through the model at a time: selection, counts and attention never cross
sequences, so a batch is a sum over its sequences. Letters: L tokens in a sequence, m tokens that a
layer sees, d width, H query heads, G key/value heads, h head width, V vocabulary, K sparsity, E
routed experts of a layer.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F

from selection import Mixed, Routed, Selection, select_causal, select_top_k, stacked

# Tensors here are tiny: more threads only wait for each other, for minutes on a busy machine.
torch.set_num_threads(1)

UNCOUNTED = -100  # the label of a position that gives no loss
# Of a mixture of experts: it chooses, but no gradient reaches it.
SELECTION_BIAS = "gate.e_score_correction_bias"


def parameter_shapes(settings, plan):
    """Names and shapes of all parameters, in order. Matrices are [out, in]."""
    d, h = settings.d, settings.head_dim
    queries, keys = settings.heads * h, settings.kv_heads * h
    shapes = {"model.embed_tokens.weight": [settings.vocabulary, d]}
    for index, layer in enumerate(plan):
        prefix = f"model.layers.{index}."
        shapes[prefix + "input_layernorm.weight"] = [d]
        shapes[prefix + "self_attn.q_proj.weight"] = [queries, d]
        shapes[prefix + "self_attn.k_proj.weight"] = [keys, d]
        shapes[prefix + "self_attn.v_proj.weight"] = [keys, d]
        shapes[prefix + "self_attn.o_proj.weight"] = [d, queries]
        shapes[prefix + "self_attn.q_norm.weight"] = [h]
        shapes[prefix + "self_attn.k_norm.weight"] = [h]
        shapes[prefix + "post_attention_layernorm.weight"] = [d]
        if layer.experts:
            shapes |= expert_shapes(settings, prefix + "mlp.")
        else:
            shapes |= ffn_shapes(prefix + "mlp.", settings.ffn, d)
        if layer.kind == "S":
            shapes[prefix + "depth_router.weight"] = [d]
            if settings.gate == "XMOD":
                shapes[prefix + "depth_scale"] = []
    shapes["model.norm.weight"] = [d]
    shapes["lm_head.weight"] = [settings.vocabulary, d]
    return shapes


def ffn_shapes(prefix, width, d):
    return {
        prefix + "gate_proj.weight": [width, d],
        prefix + "up_proj.weight": [width, d],
        prefix + "down_proj.weight": [d, width],
    }


def expert_shapes(settings, prefix):
    s = settings
    shapes = {prefix + "gate.weight": [s.experts, s.d], prefix + SELECTION_BIAS: [s.experts]}
    if s.shared:
        shapes |= ffn_shapes(prefix + "shared_experts.", s.shared * s.expert_ffn, s.d)
    for expert in range(s.experts):
        shapes |= ffn_shapes(prefix + f"experts.{expert}.", s.expert_ffn, s.d)
    return shapes


def document_positions(document_ids):
    """Positions [L] that restart where the document changes."""
    positions = torch.zeros_like(document_ids)
    for i in range(1, len(document_ids)):
        if document_ids[i] == document_ids[i - 1]:
            positions[i] = positions[i - 1] + 1
    return positions


@dataclasses.dataclass
class SequenceResult:
    logits: torch.Tensor  # [L, V]
    token_losses: torch.Tensor  # [L], 0 where not counted
    residual: torch.Tensor  # [L, d] after the last layer
    routed: dict  # layer index -> Routed
    mixed: dict  # layer index -> Mixed


class Model:
    """Parameters of the master type by name; everything else is a function of them."""

    def __init__(self, settings, plan, precision, parameters):
        self.settings, self.plan, self.precision = settings, plan, precision
        shapes = parameter_shapes(settings, plan)
        if set(shapes) != set(parameters):
            odd = sorted(set(shapes) ^ set(parameters))
            raise ValueError(f"the model and the parameters differ in {odd[:5]}")
        for name, shape in shapes.items():
            if list(parameters[name].shape) != shape:
                raise ValueError(f"{name} has shape {list(parameters[name].shape)}, not {shape}")
        self.parameters = {
            name: parameters[name].detach().to(precision.master).clone() for name in shapes
        }
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(not name.endswith(SELECTION_BIAS))

    def run(self, tokens, labels, documents=None, routing="TOP_K", replay=None):
        """One sequence. tokens, labels, documents: [L] int64. routing: TOP_K or CAUSAL. `replay`:
        the Selection of one sequence for every layer that selects."""
        s, wide = self.settings, self.precision.wide
        if s.document_mask and documents is None:
            raise ValueError("document_mask is on, so document_ids must be given")
        length = len(tokens)
        if not s.document_mask:
            documents = torch.zeros(length, dtype=torch.int64)
        positions = document_positions(documents)
        # A token's count is not differentiated: it is made of selections only.
        counts = torch.zeros(length, dtype=wide)
        sparse_layers_since_reset = 0
        routed, mixed = {}, {}

        x = self._compute("model.embed_tokens.weight")[tokens]  # [L, d]
        for index, layer in enumerate(self.plan):
            chosen = replay or Selection({}, {})
            if layer.kind == "D":
                x, of_experts = self.dense_layer(index, x, positions, documents, chosen)
                reset = True
            else:
                x, routed[index], of_experts = self.sparse_layer(
                    index, x, positions, documents, counts, routing, chosen
                )
                counts[routed[index].selection] += s.increment
                sparse_layers_since_reset += 1
                reset = sparse_layers_since_reset == s.reset_every
            if of_experts is not None:
                mixed[index] = of_experts
            if reset:
                counts = torch.zeros_like(counts)
                sparse_layers_since_reset = 0

        normed = self._norm("model.norm.weight", x)
        logits = normed.to(wide) @ self._compute("lm_head.weight").to(wide).T  # [L, V]
        losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=UNCOUNTED)
        return SequenceResult(logits, losses, x, routed, mixed)

    def dense_layer(self, index, x, positions, documents, chosen):
        """The new residual, and what the experts got, if it has them."""
        x = x + self._attention(index, x, positions, documents)
        f, mixed = self._ffn(index, x, chosen)
        return x + f, mixed

    def sparse_layer(self, index, x, positions, documents, counts, routing, chosen):
        """The new residual, what was routed, and what the experts got, if it has them. Rows that
        are not selected leave as they came."""
        s, wide = self.settings, self.precision.wide
        prefix = f"model.layers.{index}."
        raw = x.to(wide) @ self.parameters[prefix + "depth_router.weight"].to(wide)  # [L]
        adjusted = raw - s.tau * counts
        weights = torch.sigmoid(adjusted)
        replayed = chosen.tokens.get(index)
        routed = self._route(self.plan[index], raw, adjusted, routing, replayed)

        selection = routed.selection
        if len(selection) == 0:
            return x, routed, None
        rows = x[selection]  # [m, d]
        a = self._attention(index, rows, positions[selection], documents[selection])
        f, mixed = self._ffn(index, rows + a, chosen)
        r = weights[selection][:, None]
        if s.gate == "XMOD":
            scale = self.parameters[prefix + "depth_scale"].to(wide)
            new_rows = rows.to(wide) + scale * r * (a.to(wide) + f.to(wide))
        elif s.gate == "MOD":
            new_rows = rows.to(wide) + a.to(wide) + r * f.to(wide)
        else:
            new_rows = (rows + a) + f
        return x.index_copy(0, selection, new_rows.to(x.dtype)), routed, mixed

    def _route(self, layer, raw, adjusted, routing, chosen):
        aligned = adjusted if self.settings.alignment == "BIASED" else raw
        flips, flip_margin = 0, 0.0
        values = adjusted.detach()
        if routing == "CAUSAL":
            selection = select_causal(aligned.detach())
            margin = float(aligned.detach().abs().min())
        else:
            k = len(raw) // layer.sparsity
            if k == 0:
                raise ValueError(f"{len(raw)} tokens are too few for sparsity {layer.sparsity}")
            selection = select_top_k(values, k)
            outside = values.clone()
            outside[selection] = -math.inf
            margin = float(values[selection].min() - outside.max())
            if chosen is not None:
                foreign = chosen[~torch.isin(chosen, selection)]
                flips = len(foreign)
                if flips:
                    flip_margin = float(values[selection].min() - values[foreign].min())
                selection = chosen
        targets = torch.zeros_like(aligned)
        targets[selection] = 1
        loss = F.binary_cross_entropy_with_logits(aligned, targets, reduction="sum")
        return Routed(selection, loss, margin, flips, flip_margin)

    def _attention(self, index, x, positions, documents):
        """Causal among the rows of x [m, d], inside a document."""
        s, wide = self.settings, self.precision.wide
        prefix = f"model.layers.{index}."
        normed = self._norm(prefix + "input_layernorm.weight", x)
        attn = prefix + "self_attn."
        m = len(x)
        q = self._linear(attn + "q_proj.weight", normed).view(m, s.heads, s.head_dim)
        k = self._linear(attn + "k_proj.weight", normed).view(m, s.kv_heads, s.head_dim)
        v = self._linear(attn + "v_proj.weight", normed).view(m, s.kv_heads, s.head_dim)
        cos, sin = rotary_table(positions, s.head_dim, s.theta, wide)
        q = rotate(self._norm(attn + "q_norm.weight", q), cos, sin)
        k = rotate(self._norm(attn + "k_norm.weight", k), cos, sin)

        readers = s.heads // s.kv_heads
        k = k.repeat_interleave(readers, dim=1).to(wide)
        v = v.repeat_interleave(readers, dim=1).to(wide)
        scores = torch.einsum("ihc,jhc->hij", q.to(wide), k) / math.sqrt(s.head_dim)
        visible = torch.ones(m, m, dtype=torch.bool).tril()
        visible &= documents[:, None] == documents[None, :]
        probabilities = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
        mixed = torch.einsum("hij,jhc->ihc", probabilities, v).reshape(m, -1)
        return self._linear(attn + "o_proj.weight", mixed.to(x.dtype))

    def _ffn(self, index, x, chosen):
        """Of x [m, d] after its norm; and what the experts got, if the layer has them."""
        prefix = f"model.layers.{index}."
        normed = self._norm(prefix + "post_attention_layernorm.weight", x)
        if self.plan[index].experts:
            return self.mixture(prefix + "mlp.", normed, chosen.experts.get(index))
        return self._swiglu(prefix + "mlp.", normed), None

    def mixture(self, prefix, x, chosen=None):
        """Of x [m, d]. `chosen` [m, routed]: these experts, and not those that it would choose."""
        s, wide = self.settings, self.precision.wide
        logits = x.to(wide) @ self.parameters[prefix + "gate.weight"].to(wide).T  # [m, E]
        scores = torch.sigmoid(logits) if s.scoring == "SIGMOID" else logits.softmax(dim=-1)
        preference = scores.detach() + self.parameters[prefix + SELECTION_BIAS].to(wide)
        mixed = self._choose_experts(scores, preference, chosen)
        weights = scores.gather(1, mixed.selection)  # [m, routed]
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)

        total = torch.zeros_like(x, dtype=wide)
        for expert in range(s.experts):
            rows, places = torch.nonzero(mixed.selection == expert, as_tuple=True)
            if len(rows) == 0:
                continue
            y = self._swiglu(prefix + f"experts.{expert}.", x[rows]).to(wide)
            total = total.index_add(0, rows, weights[rows, places][:, None] * y)
        if s.shared:
            total = total + self._swiglu(prefix + "shared_experts.", x).to(wide)
        return total.to(x.dtype), mixed

    def _choose_experts(self, scores, preference, chosen):
        s = self.settings
        flips, flip_margin, margin = 0, 0.0, math.inf
        selection = select_top_k(preference, s.routed)
        worst_chosen = preference.gather(1, selection).min(dim=-1).values  # [m]
        if s.routed < s.experts:
            others = preference.scatter(1, selection, -math.inf)
            margin = float((worst_chosen - others.max(dim=-1).values).min())
        if chosen is not None:
            foreign = ~(chosen[:, :, None] == selection[:, None, :]).any(dim=-1)  # [m, routed]
            flips = int(foreign.sum())
            if flips:
                lacking = worst_chosen[:, None] - preference.gather(1, chosen)
                flip_margin = float(lacking[foreign].max())
            selection = chosen
        counts = torch.bincount(selection.flatten(), minlength=s.experts)
        # How often each expert is chosen, 1 on average, times its mean share of the scores: the
        # sum is 1 when either is even.
        frequency = counts.to(scores.dtype) * s.experts / (s.routed * len(scores))
        share = (scores / scores.sum(dim=-1, keepdim=True)).mean(dim=0)
        balance_loss = (frequency * share).sum()
        return Mixed(selection, counts, balance_loss, margin, flips, flip_margin)

    def _swiglu(self, prefix, x):
        gate = self._linear(prefix + "gate_proj.weight", x).to(self.precision.wide)
        up = self._linear(prefix + "up_proj.weight", x).to(self.precision.wide)
        return self._linear(prefix + "down_proj.weight", (F.silu(gate) * up).to(x.dtype))

    def _norm(self, name, x):
        """RMSNorm over the last dim."""
        wide = x.to(self.precision.wide)
        inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.settings.eps)
        return (wide * inverse * self._compute(name).to(self.precision.wide)).to(x.dtype)

    def _linear(self, name, x):
        return x @ self._compute(name).T

    def _compute(self, name):
        return self.parameters[name].to(self.precision.compute)


def rotary_table(positions, head_dim, theta, dtype):
    """Cosine and sine [m, h/2]; the phase is computed in double."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    phase = positions.to(torch.float64)[:, None] * theta**-exponent
    return phase.cos().to(dtype), phase.sin().to(dtype)


def rotate(x, cos, sin):
    """x [m, heads, h]: element i of the first half turns with element i of the second."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.to(x.dtype)


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor  # [B, L] int64
    labels: torch.Tensor  # [B, L] int64, UNCOUNTED where not counted
    documents: torch.Tensor = None  # [B, L] int64, with document_mask

    def sequence(self, b):
        documents = None if self.documents is None else self.documents[b]
        return self.tokens[b], self.labels[b], documents


@dataclasses.dataclass
class BatchResult:
    loss: float  # cross-entropy alone
    auxiliary_loss: float  # what is added to it
    gradients: dict  # of the sum of both, by name; before clipping; of what is trained
    selection: Selection
    routed: list  # per sequence: layer index -> Routed
    mixed: list  # per sequence: layer index -> Mixed

    def expert_counts(self):
        """Layer index -> tokens of the batch that each expert got, [E] int64."""
        return {
            index: sum(of_sequence[index].counts for of_sequence in self.mixed)
            for index in self.mixed[0]
        }


def loss_and_gradients(model, batch, replay=None):
    """Top-k routing of a global batch; `replay`: with this Selection instead."""
    settings = model.settings
    counted = int((batch.labels != UNCOUNTED).sum())
    tokens = batch.tokens.numel()
    for parameter in model.parameters.values():
        parameter.grad = None
    loss = auxiliary_loss = 0.0
    routed, mixed = [], []
    for b in range(len(batch.tokens)):
        chosen = None if replay is None else replay.sequence(b)
        result = model.run(*batch.sequence(b), replay=chosen)
        cross_entropy = result.token_losses.sum() / counted
        alignment_losses = [layer.alignment_loss for layer in result.routed.values()]
        alignment_loss = sum(alignment_losses, torch.zeros_like(cross_entropy))
        balance_losses = [layer.balance_loss for layer in result.mixed.values()]
        balance_loss = sum(balance_losses, torch.zeros_like(cross_entropy))
        auxiliary = settings.routing_coefficient * alignment_loss / tokens
        auxiliary = auxiliary + settings.balance_coefficient * balance_loss / len(batch.tokens)
        (cross_entropy + auxiliary).backward()
        loss += cross_entropy.item()
        auxiliary_loss += auxiliary.item()
        routed.append(result.routed)
        mixed.append(result.mixed)
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.parameters.items()
        if parameter.requires_grad
    }
    selection = Selection(stacked(routed), stacked(mixed))
    return BatchResult(loss, auxiliary_loss, gradients, selection, routed, mixed)


@torch.no_grad()
def evaluate(model, batch, routing):
    """Mean loss over the counted labels, the losses [B, L] and the result of each sequence."""
    results = [model.run(*batch.sequence(b), routing=routing) for b in range(len(batch.tokens))]
    losses = torch.stack([result.token_losses for result in results])
    counted = int((batch.labels != UNCOUNTED).sum())
    return float(losses.sum()) / counted, losses, results
