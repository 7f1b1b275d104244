#pragma once

namespace fathom {

// How the output of a sparse layer enters the residual: with the selected token's router weight r
// and the learned scale g, x + g * r * (a + f), (x + a) + r * f, or (x + a) + f.
enum class Gate { kXMod, kMod, kNone };

// Which logit the auxiliary loss trains and causal routing thresholds: the one adjusted by how
// often the token was selected, or the router's own.
enum class Alignment { kBiased, kRaw };

// How a mixture of experts scores its experts from their logits: each by itself, or by a softmax
// over all of them.
enum class Scoring { kSigmoid, kSoftmax };

}  // namespace fathom
