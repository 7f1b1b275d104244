#pragma once

#include "core/job.h"
#include "parallel/expert/expert_group.h"
#include "parallel/tensor/tensor_group.h"
#include "runtime/model/parameters.h"

namespace fathom {

// What a layer is made from. Config, groups and table outlive it.
struct LayerSetup {
  const ModelConfig& config;
  TensorGroup& tensor;
  ExpertGroup& experts;
  ParameterTable& table;
  // Of the initial values of o_proj and down_proj, which write to the residual.
  double output_deviation = 0;
};

}  // namespace fathom
