#include "runtime/checkpoint/tensor_source.h"

#include "core/status.h"

namespace fathom {

const NamedArray* TensorSource::Find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

absl::Status TensorSource::Read(const std::string& name, DType dtype, const Shape& shape,
                                void* out) const {
  const NamedArray* tensor = Find(name);
  if (tensor == nullptr) return absl::NotFoundError(absl::StrCat(path_, " has no tensor ", name));
  if (tensor->dtype != dtype || !(tensor->shape == shape)) {
    const auto describe = [](DType d, const Shape& s) {
      return absl::StrCat(std::string(Name(d)), " ", s.ToString());
    };
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": tensor ", name, " is ", describe(tensor->dtype, tensor->shape),
                     " where ", describe(dtype, shape), " is needed"));
  }
  return ReadSlice(*tensor, TensorSlice::Whole(shape), out);
}

void TensorSource::SetTensors(std::vector<NamedArray> tensors) {
  tensors_ = std::move(tensors);
  index_.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
}

}  // namespace fathom
