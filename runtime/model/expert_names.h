#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace fathom {

// What a layer's selection of experts is moved by, and its place in a dump, by the names of Hugging
// Face's Glm4Moe and of docs/formats.md.
inline std::string ExpertBiasName(int64_t layer) {
  return absl::StrCat("model.layers.", layer, ".mlp.gate.e_score_correction_bias");
}
inline std::string ExpertSelectionName(int64_t layer) {
  return absl::StrCat("model.layers.", layer, ".expert_selection");
}

}  // namespace fathom
