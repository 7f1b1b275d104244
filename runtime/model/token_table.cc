#include "runtime/model/token_table.h"

namespace fathom {

ParameterSpec TokenTable(const LayerSetup& setup, const std::string& name, ParameterRole role) {
  ParameterSpec spec{.name = name,
                     .shape = {setup.config.vocabulary, setup.config.d},
                     .role = role,
                     .deviation = kInitialDeviation,
                     .gradient = GradientOverRanks::kOwn};
  if (setup.tensor.size() > 1) {
    const ElementRange tokens = setup.tensor.PartOf(setup.config.vocabulary);
    spec.part = {.dim = 0, .begin = tokens.begin, .end = tokens.end};
  }
  return spec;
}

}  // namespace fathom
