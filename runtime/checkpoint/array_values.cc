#include "runtime/checkpoint/array_values.h"

#include <algorithm>
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

template <class T>
void Store(const double* values, int64_t count, char* out) {
  for (int64_t i = 0; i < count; ++i) {
    const T value(values[i]);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

void StoreAs(DType dtype, const double* values, int64_t count, char* out) {
  switch (dtype) {
    case DType::kFloat32:
      return Store<float>(values, count, out);
    case DType::kFloat64:
      return Store<double>(values, count, out);
    case DType::kBFloat16:
      return Store<BFloat16>(values, count, out);
    case DType::kInt32:
    case DType::kInt64:
      break;
  }
  FATHOM_CHECK(false) << "arrays are not converted to " << Name(dtype);
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

std::vector<char> ConvertArray(const NamedArray& array, DType dtype) {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t elements = array.shape.elements();
  std::vector<double> values(std::min(elements, kPiece));
  std::vector<char> converted(elements * SizeOf(dtype));
  for (int64_t begin = 0; begin < elements; begin += kPiece) {
    const int64_t count = std::min(kPiece, elements - begin);
    ReadElements(array, begin, count, values.data());
    StoreAs(dtype, values.data(), count, converted.data() + begin * SizeOf(dtype));
  }
  return converted;
}

}  // namespace fathom
