#pragma once

#include <string>

#include "runtime/model/layer_setup.h"

namespace fathom {

// The specification of the embedding or the head [V, d], of which tensor ranks hold the rows
// TensorGroup::PartOf(V): nothing is padded, so no token exists that is not in the vocabulary.
ParameterSpec TokenTable(const LayerSetup& setup, const std::string& name, ParameterRole role);

}  // namespace fathom
