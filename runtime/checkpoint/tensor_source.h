#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/checkpoint/named_array.h"
#include "runtime/checkpoint/slice.h"

namespace fathom {

// Tensors in files by name, of which any slice can be read, however the files cut them.
// Thread-safe.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  // The file or directory, for messages.
  const std::string& path() const { return path_; }
  // In the order of the files. `data` is null where a tensor does not lie in memory in one piece.
  const std::vector<NamedArray>& tensors() const { return tensors_; }
  // Null when there is none of that name.
  const NamedArray* Find(const std::string& name) const;

  // Copies the elements of a slice of one of tensors(), in row-major order and in the tensor's
  // dtype. DataLoss, naming file and tensor, for damage.
  virtual absl::Status ReadSlice(const NamedArray& tensor, const TensorSlice& slice,
                                 void* out) const = 0;
  // Copies a tensor of exactly this dtype and shape. NotFound, or InvalidArgument naming both
  // dtypes or shapes.
  absl::Status Read(const std::string& name, DType dtype, const Shape& shape, void* out) const;

 protected:
  explicit TensorSource(std::string path) : path_(std::move(path)) {}
  void SetTensors(std::vector<NamedArray> tensors);
  // The place of one of tensors() among them.
  size_t IndexOf(const NamedArray& tensor) const { return &tensor - tensors_.data(); }

 private:
  std::string path_;
  std::vector<NamedArray> tensors_;
  std::map<std::string, size_t> index_;
};

}  // namespace fathom
