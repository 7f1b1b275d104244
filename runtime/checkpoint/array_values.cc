#include "runtime/checkpoint/array_values.h"

#include <cstring>

#include "core/check.h"

namespace fathom {
namespace {

template <class T>
void Read(const void* data, int64_t begin, int64_t count, double* out) {
  const char* bytes = static_cast<const char*>(data) + begin * sizeof(T);
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(value);
  }
}

}  // namespace

void ReadElements(const NamedArray& array, int64_t begin, int64_t count, double* out) {
  FATHOM_CHECK(begin >= 0 && begin + count <= array.shape.elements()) << array.name;
  switch (array.dtype) {
    case DType::kFloat32:
      return Read<float>(array.data, begin, count, out);
    case DType::kFloat64:
      return Read<double>(array.data, begin, count, out);
    case DType::kBFloat16:
      return Read<BFloat16>(array.data, begin, count, out);
    case DType::kInt32:
      return Read<int32_t>(array.data, begin, count, out);
    case DType::kInt64:
      return Read<int64_t>(array.data, begin, count, out);
  }
}

}  // namespace fathom
