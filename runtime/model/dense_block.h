#pragma once

#include <string>

#include "runtime/model/attention_part.h"
#include "runtime/model/block.h"
#include "runtime/model/ffn_part.h"

namespace fathom {

// A layer that sees all tokens: h = x + Attention(norm(x)), y = h + FFN(norm(h)).
class DenseBlock final : public Block {
 public:
  // `output_deviation`: of the initial values of o_proj and down_proj.
  DenseBlock(const ModelConfig& config, const std::string& prefix, double output_deviation,
             ParameterTable& table);

  std::unique_ptr<Saved> Forward(Pass& pass) const override;
  void Backward(Pass& pass, const Saved& saved) const override;

 private:
  AttentionPart attention_;
  FfnPart ffn_;
};

}  // namespace fathom
