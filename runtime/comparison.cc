#include "runtime/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/array_values.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/safetensors.h"

namespace fathom {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::string_view kExtension = ".safetensors";
constexpr char kStepFile[] = "step.json";
constexpr char kGradients[] = "gradients";

// One of the two sides: tensor files by name, and numbers by name.
struct Side {
  std::string path;
  std::string kind;
  std::map<std::string, std::unique_ptr<TensorSource>> files;
  std::map<std::string, double> numbers;
};

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

absl::Status ReadStep(FileSystem& files, const std::string& path, Side* side) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(files, path));
  const auto record = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  }
  for (const auto& [name, value] : record.items()) {
    if (name == "seconds" || name == "tokens_per_second") continue;
    if (!value.is_number() && !value.is_null()) continue;
    side->numbers[absl::StrCat(kStepFile, ": ", name)] =
        value.is_null() ? std::nan("") : value.get<double>();
  }
  return absl::OkStatus();
}

absl::Status ReadCheckpoint(FileSystem& files, const std::string& directory, Side* side) {
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(files, directory));
  const Manifest& manifest = *checkpoint.manifest;
  const auto add = [&](const std::string& name, double value) {
    side->numbers["manifest: " + name] = value;
  };
  add("step", static_cast<double>(manifest.step));
  add("consumed_sequences", static_cast<double>(manifest.consumed_sequences));
  for (const auto& [name, value] : manifest.integers) add(name, static_cast<double>(value));
  for (const auto& [name, value] : manifest.numbers) add(name, value);
  side->files["weights"] = std::move(checkpoint.weights);
  side->files["optimizer"] = std::move(checkpoint.optimizer);
  return absl::OkStatus();
}

absl::StatusOr<Side> Open(FileSystem& files, const std::string& path) {
  Side side{.path = path, .kind = "safetensors file", .files = {}, .numbers = {}};
  if (!files.IsDirectory(path)) {
    FATHOM_ASSIGN_OR_RETURN(side.files[""], SafetensorsFile::Open(files, path));
    return side;
  }
  FATHOM_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(files, path));
  if (files.Exists(JoinPath(directory, "manifest.json"))) {
    side.kind = "checkpoint";
    FATHOM_RETURN_IF_ERROR(ReadCheckpoint(files, directory, &side));
    return side;
  }
  const std::string step = JoinPath(path, kStepFile);
  side.kind = files.Exists(step) ? "dump" : "directory";
  if (side.kind == "dump") FATHOM_RETURN_IF_ERROR(ReadStep(files, step, &side));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(path));
  for (const std::string& name : names) {
    if (!EndsWith(name, kExtension)) continue;
    FATHOM_ASSIGN_OR_RETURN(side.files[name.substr(0, name.size() - kExtension.size())],
                            SafetensorsFile::Open(files, JoinPath(path, name)));
  }
  if (side.files.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, " is neither a checkpoint nor a dump, and holds no safetensors file"));
  }
  return side;
}

// Sums over the elements of two tensors of the same shape.
struct Gap {
  int64_t differing = 0;  // elements
  double largest = 0;     // max|a - b|; infinite where one of them is NaN
  double squares = 0;     // of a - b
  double largest_b = 0;
  double squares_b = 0;
  int64_t place = -1;  // of the largest, the first of several
  double a = 0, b = 0;
};

bool IsInteger(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

// Zeros of different sign are not the same.
bool Same(double a, double b) { return a == b && std::signbit(a) == std::signbit(b); }

// One of the two tensors.
struct SourceTensor {
  const TensorSource& source;
  const NamedArray& tensor;

  // Elements begin to end - 1 as doubles.
  absl::Status Read(int64_t begin, int64_t end, std::vector<double>* out) const {
    NamedArray chunk = tensor;
    chunk.shape = {end - begin};
    std::vector<char> bytes(chunk.bytes());
    FATHOM_RETURN_IF_ERROR(source.ReadSlice(tensor, {{}, {begin, end}}, bytes.data()));
    chunk.data = bytes.data();
    out->resize(end - begin);
    ReadElements(chunk, 0, end - begin, out->data());
    return absl::OkStatus();
  }
};

absl::StatusOr<Gap> MeasureGap(const SourceTensor& a, const SourceTensor& b) {
  constexpr int64_t kChunk = 1 << 18;
  std::vector<double> chunk_a, chunk_b;
  Gap gap;
  const int64_t elements = a.tensor.shape.elements();
  for (int64_t begin = 0; begin < elements; begin += kChunk) {
    const int64_t end = std::min(elements, begin + kChunk);
    FATHOM_RETURN_IF_ERROR(a.Read(begin, end, &chunk_a));
    FATHOM_RETURN_IF_ERROR(b.Read(begin, end, &chunk_b));
    for (int64_t i = 0; i < end - begin; ++i) {
      const double x = chunk_a[i], y = chunk_b[i];
      if (!std::isnan(y)) {
        gap.largest_b = std::max(gap.largest_b, std::abs(y));
        gap.squares_b += y * y;
      }
      if (Same(x, y)) continue;
      ++gap.differing;
      const double distance =
          std::isnan(x) || std::isnan(y) ? kInfinity : (x == y ? 0 : std::abs(x - y));
      gap.squares += distance * distance;
      if (gap.place >= 0 && distance <= gap.largest) continue;
      gap.largest = distance;
      gap.place = begin + i;
      gap.a = x;
      gap.b = y;
    }
  }
  return gap;
}

double Ratio(double gap, double size) {
  if (gap == 0) return 0;
  return gap == kInfinity || size == 0 ? kInfinity : gap / size;
}

// "[3, 17]"
std::string MultiIndex(int64_t place, const Shape& shape) {
  std::string text;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    text = absl::StrCat(place % shape[dim], text.empty() ? "" : ", ", text);
    place /= shape[dim];
  }
  return absl::StrCat("[", text, "]");
}

double FloorShare(const std::string& name) {
  if (EndsWith(name, "depth_scale")) return 1e-2;
  if (EndsWith(name, "depth_router.weight")) return 1e-3;
  return 1e-4;
}

// Collects the differences of one pair of sides.
class Comparer {
 public:
  Comparer(const Side& a, const Side& b, double tolerance) : a_(a), b_(b), tolerance_(tolerance) {}

  absl::StatusOr<Comparison> Run() && {
    for (const auto& [name, file] : a_.files) {
      const auto other = b_.files.find(name);
      if (other == b_.files.end()) {
        AddMissing(name, "file", b_.path);
      } else {
        FATHOM_RETURN_IF_ERROR(CompareFiles(name, *file, *other->second));
      }
    }
    for (const auto& [name, file] : b_.files) {
      if (a_.files.count(name) == 0) AddMissing(name, "file", a_.path);
    }
    CompareNumbers();
    std::stable_sort(result_.differences.begin(), result_.differences.end(),
                     [](const auto& x, const auto& y) {
                       return std::pair(x.beyond, x.relative) > std::pair(y.beyond, y.relative);
                     });
    return std::move(result_);
  }

 private:
  void Add(Difference difference) {
    result_.beyond += difference.beyond;
    result_.differences.push_back(std::move(difference));
  }

  void AddMissing(const std::string& where, const std::string& what, const std::string& path) {
    Add({where, absl::StrCat("there is no such ", what, " in ", path), kInfinity, true});
  }

  static std::string Where(const std::string& file, const std::string& tensor) {
    return file.empty() ? tensor : absl::StrCat(file, ": ", tensor);
  }

  absl::Status CompareFiles(const std::string& name, const TensorSource& a, const TensorSource& b) {
    double gradients_norm = 0;
    if (a_.kind == "dump" && name == kGradients) {
      FATHOM_ASSIGN_OR_RETURN(gradients_norm, NormOfFloat32(a, b));
    }
    for (const NamedArray& array : a.tensors()) {
      const NamedArray* other = b.Find(array.name);
      if (other == nullptr) {
        AddMissing(Where(name, array.name), "tensor", b.path());
      } else {
        ++result_.tensors;
        FATHOM_RETURN_IF_ERROR(CompareTensors(Where(name, array.name), {a, array}, {b, *other},
                                              FloorShare(array.name) * gradients_norm));
      }
    }
    for (const NamedArray& array : b.tensors()) {
      if (a.Find(array.name) == nullptr) AddMissing(Where(name, array.name), "tensor", a.path());
    }
    return absl::OkStatus();
  }

  // The norm of all of b's tensors, or 0 where neither side was computed in float32.
  static absl::StatusOr<double> NormOfFloat32(const TensorSource& a, const TensorSource& b) {
    const auto is_float32 = [](const NamedArray& array) { return array.dtype == DType::kFloat32; };
    const auto& in_a = a.tensors();
    const auto& in_b = b.tensors();
    if (std::none_of(in_a.begin(), in_a.end(), is_float32) &&
        std::none_of(in_b.begin(), in_b.end(), is_float32)) {
      return 0;
    }
    double squares = 0;
    for (const NamedArray& array : in_b) {
      FATHOM_ASSIGN_OR_RETURN(const Gap gap, MeasureGap({b, array}, {b, array}));
      squares += gap.squares_b;
    }
    return std::sqrt(squares);
  }

  absl::Status CompareTensors(const std::string& where, const SourceTensor& of_a,
                              const SourceTensor& of_b, double floor_norm) {
    const NamedArray& a = of_a.tensor;
    const NamedArray& b = of_b.tensor;
    if (!(a.shape == b.shape)) {
      Add({where, absl::StrCat("shapes ", a.shape.ToString(), " and ", b.shape.ToString()),
           kInfinity, true});
      return absl::OkStatus();
    }
    FATHOM_ASSIGN_OR_RETURN(const Gap gap, MeasureGap(of_a, of_b));
    const bool integers = IsInteger(a.dtype) || IsInteger(b.dtype);
    const bool other_dtype = a.dtype != b.dtype;
    if (gap.differing == 0 && !(other_dtype && (tolerance_ == 0 || integers))) {
      return absl::OkStatus();
    }
    double largest_b = gap.largest_b;
    double norm_b = std::sqrt(gap.squares_b);
    if (norm_b < floor_norm) {
      largest_b = floor_norm / std::sqrt(static_cast<double>(b.shape.elements()));
      norm_b = floor_norm;
    }
    const double relative = Ratio(gap.largest, largest_b);
    std::string what;
    if (gap.differing > 0) {
      what = absl::StrFormat(
          "at %s %.17g and %.17g, relative difference %.3g, L2 ratio %.3g, %d of %d elements "
          "differ",
          MultiIndex(gap.place, a.shape), gap.a, gap.b, relative,
          Ratio(std::sqrt(gap.squares), norm_b), gap.differing, a.shape.elements());
    }
    if (other_dtype) {
      absl::StrAppend(&what, what.empty() ? "" : "; ", std::string(Name(a.dtype)), " and ",
                      std::string(Name(b.dtype)));
    }
    Add({where, what, relative, tolerance_ == 0 || integers || relative > tolerance_});
    return absl::OkStatus();
  }

  void CompareNumbers() {
    for (const auto& [name, a] : a_.numbers) {
      const auto other = b_.numbers.find(name);
      if (other == b_.numbers.end()) {
        AddMissing(name, "number", b_.path);
        continue;
      }
      ++result_.numbers;
      const double b = other->second;
      if (Same(a, b)) continue;
      const double gap = std::isnan(a) || std::isnan(b) ? kInfinity : std::abs(a - b);
      const double relative = Ratio(gap, std::abs(b));
      Add({name, absl::StrFormat("%.17g and %.17g, relative difference %.3g", a, b, relative),
           relative, tolerance_ == 0 || relative > tolerance_});
    }
    for (const auto& [name, b] : b_.numbers) {
      if (a_.numbers.count(name) == 0) AddMissing(name, "number", a_.path);
    }
  }

  const Side& a_;
  const Side& b_;
  double tolerance_;
  Comparison result_;
};

}  // namespace

absl::StatusOr<Comparison> Compare(FileSystem& files, const std::string& a, const std::string& b,
                                   double tolerance) {
  FATHOM_ASSIGN_OR_RETURN(const Side side_a, Open(files, a));
  FATHOM_ASSIGN_OR_RETURN(const Side side_b, Open(files, b));
  if (side_a.kind != side_b.kind) {
    return absl::InvalidArgumentError(absl::StrCat(a, " is a ", side_a.kind, " and ", b, " a ",
                                                   side_b.kind,
                                                   ": two of the same kind are needed"));
  }
  return Comparer(side_a, side_b, tolerance).Run();
}

}  // namespace fathom
