#include "runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/status.h"
#include "nlohmann/json.hpp"

namespace fathom {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr struct {
  DType dtype;
  const char* name;
} kDTypes[] = {{DType::kFloat32, "F32"},
               {DType::kFloat64, "F64"},
               {DType::kBFloat16, "BF16"},
               {DType::kInt32, "I32"},
               {DType::kInt64, "I64"}};

const char* FormatName(DType dtype) {
  for (const auto& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  FATHOM_CHECK(false) << "no such dtype";
  return "";
}

// The JSON of the header, padded so that the data begins at a multiple of 8.
std::string HeaderText(const std::vector<NamedArray>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t begin = 0;
  std::set<std::string> names;
  for (const NamedArray& tensor : tensors) {
    FATHOM_CHECK(names.insert(tensor.name).second) << tensor.name << " twice";
    nlohmann::ordered_json dims = nlohmann::ordered_json::array();
    for (int i = 0; i < tensor.shape.rank(); ++i) dims.push_back(tensor.shape[i]);
    nlohmann::ordered_json entry;
    entry["dtype"] = FormatName(tensor.dtype);
    entry["shape"] = std::move(dims);
    entry["data_offsets"] = {begin, begin + tensor.bytes()};
    // A plain push: looking a name up in an ordered object takes time in proportion to its size.
    header.get_ref<nlohmann::ordered_json::object_t&>().push_back({tensor.name, std::move(entry)});
    begin += tensor.bytes();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

// Reads one header, keeping what a message about damage needs.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view contents)
      : path_(path), contents_(contents) {}

  absl::Status Parse(std::map<std::string, std::string>* metadata,
                     std::vector<NamedArray>* tensors) {
    FATHOM_ASSIGN_OR_RETURN(const Json header, ParseJson());
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        FATHOM_RETURN_IF_ERROR(ParseMetadata(entry, metadata));
      } else {
        FATHOM_RETURN_IF_ERROR(ParseTensor(name, entry, tensors));
      }
    }
    return CheckCoverage(tensors);
  }

 private:
  absl::Status Damaged(const std::string& what) const {
    return absl::DataLossError(absl::StrCat(path_, " is not a valid safetensors file: ", what));
  }
  absl::Status Damaged(const std::string& tensor, const std::string& what) const {
    return Damaged(absl::StrCat("tensor ", tensor, " ", what));
  }

  absl::StatusOr<Json> ParseJson() {
    if (contents_.size() < 8) {
      return Damaged(absl::StrCat("it has only ", contents_.size(), " bytes"));
    }
    uint64_t length;
    std::memcpy(&length, contents_.data(), 8);
    if (length > contents_.size() - 8) {
      return Damaged(absl::StrCat("its header should have ", length, " bytes, but only ",
                                  contents_.size() - 8, " follow"));
    }
    const std::string_view text = contents_.substr(8, length);
    data_ = contents_.substr(8 + length);
    Json header = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
    if (!header.is_object()) return Damaged("its header is not a JSON object");
    return header;
  }

  absl::Status ParseMetadata(const Json& entry, std::map<std::string, std::string>* metadata) {
    if (!entry.is_object()) return Damaged("__metadata__ is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) return Damaged(absl::StrCat("__metadata__.", key, " is no string"));
      (*metadata)[key] = value.get<std::string>();
    }
    return absl::OkStatus();
  }

  absl::Status ParseTensor(const std::string& name, const Json& entry,
                           std::vector<NamedArray>* tensors) {
    if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
        !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
        !entry["data_offsets"].is_array()) {
      return Damaged(name, "lacks dtype, shape or data_offsets");
    }
    NamedArray tensor;
    tensor.name = name;
    const std::string& dtype = entry["dtype"].get_ref<const std::string&>();
    const auto* known = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                     [&](const auto& other) { return dtype == other.name; });
    if (known == std::end(kDTypes)) {
      return absl::UnimplementedError(
          absl::StrCat(path_, ": tensor ", name, " has dtype ", dtype,
                       ", which is not supported; F32, F64, BF16, I32 and I64 are"));
    }
    tensor.dtype = known->dtype;
    FATHOM_RETURN_IF_ERROR(ParseShape(name, entry["shape"], SizeOf(tensor.dtype), &tensor.shape));
    const Json& offsets = entry["data_offsets"];
    if (offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      return Damaged(name, "has data_offsets that are not two offsets");
    }
    const uint64_t begin = offsets[0].get<uint64_t>();
    const uint64_t end = offsets[1].get<uint64_t>();
    if (begin > end || end > data_.size()) {
      return Damaged(name,
                     absl::StrCat("lies at bytes ", begin, " to ", end, " of ", data_.size()));
    }
    if (end - begin != tensor.bytes()) {
      return Damaged(name, absl::StrCat("has ", end - begin, " bytes where its shape ",
                                        tensor.shape.ToString(), " takes ", tensor.bytes()));
    }
    tensor.data = data_.data() + begin;
    tensors->push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status ParseShape(const std::string& name, const Json& dims, int64_t element_size,
                          Shape* shape) {
    if (dims.size() > Shape::kMaximumRank) {
      return absl::UnimplementedError(absl::StrCat(path_, ": tensor ", name, " has ", dims.size(),
                                                   " dims, and up to four are supported"));
    }
    uint64_t bytes = element_size;
    for (const Json& dim : dims) {
      if (!dim.is_number_unsigned()) return Damaged(name, "has a dim that is not a number");
      // No dim and no product may exceed the file, so none of them overflows.
      const uint64_t size = dim.get<uint64_t>();
      if (size > contents_.size() || __builtin_mul_overflow(bytes, size, &bytes)) {
        return Damaged(name, absl::StrCat("has a dim of ", size, ", more than the file holds"));
      }
      shape->Append(size);
    }
    if (bytes > contents_.size()) return Damaged(name, "is larger than the file");
    return absl::OkStatus();
  }

  // Sorts the tensors by place, and makes sure that each begins where the one before ends.
  absl::Status CheckCoverage(std::vector<NamedArray>* tensors) const {
    std::sort(tensors->begin(), tensors->end(), [](const NamedArray& a, const NamedArray& b) {
      return std::pair(a.data, a.bytes()) < std::pair(b.data, b.bytes());
    });
    const char* expected = data_.data();
    for (const NamedArray& tensor : *tensors) {
      if (tensor.data != expected) {
        return Damaged(tensor.name, "overlaps the one before or leaves a hole");
      }
      expected += tensor.bytes();
    }
    const int64_t rest = data_.data() + data_.size() - expected;
    if (rest != 0) return Damaged(absl::StrCat(rest, " bytes at the end belong to no tensor"));
    return absl::OkStatus();
  }

  const std::string& path_;
  std::string_view contents_;
  std::string_view data_;  // behind the header
};

}  // namespace

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    WritableFile& file, const std::vector<NamedArray>& tensors,
    const std::map<std::string, std::string>& metadata) {
  const std::string header = HeaderText(tensors, metadata);
  const uint64_t length = header.size();
  FATHOM_RETURN_IF_ERROR(
      file.Append(std::string_view(reinterpret_cast<const char*>(&length), sizeof(length))));
  FATHOM_RETURN_IF_ERROR(file.Append(header));
  int64_t bytes = 0;
  for (const NamedArray& tensor : tensors) bytes += tensor.bytes();
  return SafetensorsWriter(file, bytes);
}

absl::Status SafetensorsWriter::Append(std::string_view data) {
  bytes_left_ -= data.size();
  FATHOM_CHECK(bytes_left_ >= 0) << "more data than the header says";
  return file_->Append(data);
}

absl::Status SafetensorsWriter::Finish() const {
  FATHOM_CHECK_EQ(bytes_left_, 0);
  return absl::OkStatus();
}

absl::Status WriteSafetensors(WritableFile& file, const std::vector<NamedArray>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const ArrayLoader& load) {
  FATHOM_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                          SafetensorsWriter::Create(file, tensors, metadata));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const void* data = tensors[i].data;
    if (load) {
      FATHOM_ASSIGN_OR_RETURN(data, load(i));
    }
    FATHOM_RETURN_IF_ERROR(
        writer.Append(std::string_view(static_cast<const char*>(data), tensors[i].bytes())));
  }
  return writer.Finish();
}

absl::Status WriteSafetensorsFile(FileSystem& files, const std::string& path,
                                  const std::vector<NamedArray>& tensors,
                                  const std::map<std::string, std::string>& metadata,
                                  const ArrayLoader& load) {
  const std::string temporary = TemporaryPath(path);
  const auto write = [&]() -> absl::Status {
    FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.OpenForWrite(temporary));
    FATHOM_RETURN_IF_ERROR(WriteSafetensors(*file, tensors, metadata, load));
    FATHOM_RETURN_IF_ERROR(file->Sync());
    FATHOM_RETURN_IF_ERROR(file->Close());
    return files.Rename(temporary, path);
  };
  const absl::Status status = write();
  if (!status.ok()) files.RemoveAll(temporary).IgnoreError();
  return status;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(FileSystem& files,
                                                                       const std::string& path) {
  std::unique_ptr<SafetensorsFile> result(new SafetensorsFile(path));
  FATHOM_ASSIGN_OR_RETURN(result->file_, files.OpenForRead(path));
  HeaderParser parser(result->path(), result->file_->contents());
  std::vector<NamedArray> tensors;
  FATHOM_RETURN_IF_ERROR(parser.Parse(&result->metadata_, &tensors));
  result->SetTensors(std::move(tensors));
  return result;
}

absl::Status SafetensorsFile::ReadSlice(const NamedArray& tensor, const TensorSlice& slice,
                                        void* out) const {
  const int64_t size = SizeOf(tensor.dtype);
  const char* from = static_cast<const char*>(tensor.data);
  char* to = static_cast<char*>(out);
  for (const SliceRun& run : RunsOf(tensor.shape, slice)) {
    std::memcpy(to + run.in_slice * size, from + run.in_tensor * size, run.count * size);
  }
  return absl::OkStatus();
}

}  // namespace fathom
